/* Models of tokens in use: prompts in PEFT's form, there and back. */
#include "cli/program.h"

static const char rail[] =
    "model: {name: llama, layers: 1, width: 16, heads: 2, kv_heads: 1, hidden: 24, seq: 12, "
    "vocab: 128}\n"
    "data: {format: text, path: t.txt}\n"
    "train: {batch: 4, steps: 30, lr: 0.01, threads: 1, log_every: 30}\n";

static void put_run(void **state)
{
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "l.yaml"), rail);
    must(*state, "train l.yaml --out l");
}

static char *text_of(void **state, const char *line)
{
    json_t *j = prints_json(*state, line);
    char *text = strdup(json_string_value(json_object_get(j, "text")));
    json_decref(j);
    return text;
}

/* What export writes of a prompt is what import takes of PEFT's: the same text. */
static void prompts_of_peft(void **state)
{
    put_run(state);
    must(*state, "train l.yaml --out p -s train.prompt=3 -s train.lr=0.5 "
                 "--init l/checkpoints/step-00000030.safetensors");
    must(*state, "export l --hf hf");
    must(*state, "export p --adapter peft");
    char *config = read_whole(tmpdir_path(state, "peft/adapter_config.json"), NULL);
    json_t *j = json_loads(config, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "peft_type")), "PROMPT_TUNING");
    assert_string_equal(json_string_value(json_object_get(j, "task_type")), "CAUSAL_LM");
    assert_true(json_num(j, "num_virtual_tokens") == 3 && json_num(j, "token_dim") == 16);
    json_decref(j);
    free(config);
    must(*state, "import hf --adapter peft --out back");
    must(*state, "import hf --out plain");
    char *with = text_of(state, "generate p -p train -n 40 -t 1 --json");
    char *back = text_of(state, "generate back -p train -n 40 -t 1 --json");
    char *plain = text_of(state, "generate plain -p train -n 40 -t 1 --json");
    assert_string_equal(with, back);
    assert_string_not_equal(with, plain);
    free(with), free(back), free(plain);
    must(*state, "train l.yaml --out a -s train.lora=2 -s train.steps=1 "
                 "--init l/checkpoints/step-00000030.safetensors");
    must(*state, "export a --adapter lora --map hf-llama");
    refuses(*state, 1, "import hf --adapter lora --out x", "peft_type is LORA, want PROMPT_TUNING",
            "merge_and_unload");
    refuses(*state, 1, "import hf --adapter hf --out x", "hf/adapter_config.json");
    refuses(*state, 1, "import hf --adapter peft", "--adapter is of --out");
    must(*state, "export l --gguf l.gguf");
    refuses(*state, 1, "import l.gguf --adapter peft --out x", "a folder of Hugging Face's");
    must(*state, "train l.yaml --out w -s model.width=8 -s train.steps=1");
    must(*state, "export w --hf narrow");
    refuses(*state, 1, "import narrow --adapter peft --out x", "prompt_embeddings [vectors,8]");
    assert_false(file_exists(tmpdir_path(state, "x")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prompts_of_peft, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
