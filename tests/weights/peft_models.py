"""A small llama of transformers with random weights, for test_peft.c: FOLDER gets base, as
save_pretrained writes it, x (two sequences of 16 tokens), and theirs, the same with a prompt that PEFT saved and
theirs.y, its logits. FOLDER check: adapters that were exported to lora and prompt load in
PEFT beside it, with no tensor missing, and give the logits in lora.y and prompt.y. Exits with 77 where a library is not installed."""
import shutil
import sys

try:
    import numpy
    import peft
    import safetensors.torch
    import torch
    import transformers as t
except ImportError as why:
    print(why)
    sys.exit(77)

torch.manual_seed(1)
torch.set_num_threads(1)
folder = sys.argv[1]


def check(name):
    base = t.AutoModelForCausalLM.from_pretrained(f"{folder}/base")
    model = peft.PeftModel.from_pretrained(base, f"{folder}/{name}").eval()
    x = torch.from_numpy(numpy.fromfile(f"{folder}/x", numpy.int32).reshape(2, 16)).long()
    with torch.no_grad():
        plain = t.AutoModelForCausalLM.from_pretrained(f"{folder}/base")(x).logits
        y = model(x).logits[:, -16:]  # behind those of the prompt
    off = abs(y.numpy().ravel() - numpy.fromfile(f"{folder}/{name}.y", numpy.float32)).max()
    moved = abs(y - plain).max().item()
    have = peft.get_peft_model_state_dict(model)
    file = safetensors.torch.load_file(f"{folder}/{name}/adapter_model.safetensors")
    same = have.keys() == file.keys() and all(torch.equal(have[k], file[k]) for k in have)
    kind = model.peft_config["default"].peft_type.value
    print(f"{name}: {kind}, {len(file)} tensors{'' if same else ' that differ'}, moves logits by {moved:.2g}, off by {off:.2g}")
    return off <= 1e-4 and moved > 0.1 and same


if "check" in sys.argv:
    sys.exit(not all([check("lora"), check("prompt")]))
model = t.LlamaForCausalLM(t.LlamaConfig(
    hidden_size=48, num_attention_heads=6, num_key_value_heads=2, intermediate_size=80, num_hidden_layers=2,
    vocab_size=101, max_position_embeddings=32, initializer_range=0.15))
model.save_pretrained(f"{folder}/base")
x = torch.randint(1, 101, (2, 16))
x.numpy().astype(numpy.int32).tofile(f"{folder}/x")
tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)).eval()
torch.nn.init.normal_(tuned.prompt_encoder["default"].embedding.weight, 0, 0.5)
with torch.no_grad():
    tuned(x).logits[:, -16:].numpy().astype(numpy.float32).tofile(f"{folder}/theirs.y")
tuned.save_pretrained(f"{folder}/theirs")
shutil.copy(f"{folder}/base/model.safetensors", f"{folder}/theirs")
