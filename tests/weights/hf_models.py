"""Small models of transformers with random weights, for test_hf.c: FOLDER gets a folder of each as
save_pretrained writes it (one in shards), x (two sequences of 32 tokens) and the logits, or the last
layer, of each. FOLDER check: what was exported to NAME.out gives the same. Exits with 77 where a library is not installed."""
import json
import sys

try:
    import numpy
    import torch
    import transformers as t
except ImportError as why:
    print(why)
    sys.exit(77)

torch.manual_seed(1)
torch.set_num_threads(1)
folder = sys.argv[1]
size = dict(hidden_size=48, num_attention_heads=6, intermediate_size=80, num_hidden_layers=2,
            vocab_size=101, max_position_embeddings=32, initializer_range=0.15)
models = {
    "llama": t.LlamaForCausalLM(t.LlamaConfig(**size, num_key_value_heads=2, rope_theta=5000.0)),
    "tied": t.LlamaForCausalLM(t.LlamaConfig(**size, tie_word_embeddings=True)),
    "mistral": t.MistralForCausalLM(t.MistralConfig(
        **size, num_key_value_heads=2, sliding_window=7, attn_implementation="eager")),
    "bert": t.BertForMaskedLM(t.BertConfig(**size)),
    "encoder": t.BertModel(t.BertConfig(**size)),
    "gpt2": t.GPT2LMHeadModel(t.GPT2Config(n_embd=48, n_head=6, n_layer=2, vocab_size=101, n_positions=32,
                                           initializer_range=0.15)),
}
if "check" in sys.argv:
    for name, model in models.items():
        loaded, info = type(model).from_pretrained(f"{folder}/{name}.out", output_loading_info=True)
        x = torch.from_numpy(numpy.fromfile(f"{folder}/x", numpy.int32).reshape(2, 32)).long()
        with torch.no_grad():
            y = loaded.eval()(x)
        y = y.logits if hasattr(y, "logits") else y.last_hidden_state
        off = abs(y.numpy().ravel() - numpy.fromfile(f"{folder}/{name}.y", numpy.float32)).max()
        absent = [k for k in info["missing_keys"] if "pooler" not in k]
        print(f"{name}: exported, off by {off:.2g}, missing {absent}, unexpected {info['unexpected_keys']}")
        if not off <= 1e-4 or absent or info["unexpected_keys"]:
            sys.exit(1)
    sys.exit(0)
x = torch.randint(1, 101, (2, 32))
x.numpy().astype(numpy.int32).tofile(f"{folder}/x")
for name, model in models.items():
    model.eval()
    for p in model.parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p, 0.8, 0.2)
    model.save_pretrained(f"{folder}/{name}", max_shard_size="60KB" if name == "llama" else "1GB")
    with torch.no_grad():
        y = model(x)
    y = y.logits if hasattr(y, "logits") else y.last_hidden_state
    y.numpy().astype(numpy.float32).tofile(f"{folder}/{name}.y")

# From version 5 on the base of rotary positions stands in an object of its own.
path = f"{folder}/llama/config.json"
config = json.load(open(path))
if "rope_theta" in config:
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    config.pop("rope_scaling", None)
    json.dump(config, open(path, "w"))
