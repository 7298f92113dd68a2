/* Weights in and out of the whole tool: train --init, eval --init, export --weights; and the
 * settings that a run had before it went on with others. */
#include "cli/program.h"

static const char run[] = "model: {name: lenet5, image: 28, channels: 1}\n"
                          "data: {name: synthetic, samples: 64}\n"
                          "train: {batch: 16, steps: 3, threads: 1, eval_samples: 32}\n";

static double loss_of(const char *folder, const char *line)
{
    json_t *j = prints_json(folder, line);
    double loss = json_num(j, "val_loss");
    json_decref(j);
    return loss;
}

static void in_and_out(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), run);
    must(folder, "train r.yaml --out a");
    double loss = loss_of(folder, "eval a --json");
    outcome o = succeeds(folder, "export a --weights w.safetensors --map pytorch");
    assert_non_null(strstr(o.out, "tensors in f32, by map pytorch"));
    outcome_free(&o);
    /* The same weights through another system's layout are the same model, in any run of it. */
    assert_true(loss == loss_of(folder, "eval r.yaml --init w.safetensors --json"));
    assert_true(loss == loss_of(folder, "eval r.yaml --init w.safetensors --json --set "
                                        "train.init_map=pytorch"));
    must(folder, "export lenet5 --init w.safetensors --weights v.safetensors --map pytorch "
                 "--set model.image=28 --set model.channels=1");
    assert_same_file(tmpdir_path(state, "w.safetensors"), tmpdir_path(state, "v.safetensors"));
    /* A run that begins with them, on two ranks too, begins where the other ended. */
    o = succeeds(folder, "train r.yaml --init w.safetensors --out b --set train.steps=1 "
                         "--set train.lr=1e-12");
    assert_non_null(strstr(o.err, "of w.safetensors (safetensors), by map"));
    outcome_free(&o);
    assert_float_equal(loss_of(folder, "eval b --json"), loss, 1e-6);
    must(folder, "train r.yaml --init a/checkpoints/step-00000003.safetensors --out c -n 2 "
                 "--zero 3 --set train.steps=1 --set train.lr=1e-12");
    assert_float_equal(loss_of(folder, "eval c --json"), loss, 1e-5);
    /* What a run left out of its own beginning is not left out of other weights. */
    must(folder, "train r.yaml --init w.safetensors --out e --set train.init_skip=fc*");
    assert_true(loss == loss_of(folder, "eval e --init w.safetensors --json"));
    refuses(folder, 1, "train r.yaml --init w.safetensors --out d --set model.classes=12",
            "of another type or shape", "train.init_skip");
    refuses(folder, 1, "eval a --init w.safetensors --checkpoint w.safetensors",
            "cannot be combined");
    refuses(folder, 1, "train a --resume --init w.safetensors", "use one of them");
    refuses(folder, 1, "export a", "nothing to write: use --weights FILE.safetensors");
    refuses(folder, 1, "export a --weights none/x", "none/x: creating: its folder is not there");
    refuses(folder, 1, "export a --weights x --dtype i32", "expected f32, bf16 or f16");
}

static void settings_are_kept(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), run);
    must(folder, "train r.yaml --out a");
    must(folder, "train a --resume --set train.steps=5 --set train.lr=0.01");
    must(folder, "train a --resume --set train.steps=5 --set train.lr=0.01"); /* nothing new */
    char *was = read_whole(tmpdir_path(state, "a/run.1.yaml"), NULL);
    assert_non_null(was);
    assert_non_null(strstr(was, "# up to step 3\n"));
    assert_non_null(strstr(was, "lr: 0.001"));
    free(was);
    char *now = read_whole(tmpdir_path(state, "a/run.yaml"), NULL);
    assert_non_null(strstr(now, "lr: 0.01"));
    free(now);
    assert_false(file_exists(tmpdir_path(state, "a/run.2.yaml")));
    must(folder, "train r.yaml --out a --overwrite");
    assert_false(file_exists(tmpdir_path(state, "a/run.1.yaml")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(in_and_out, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(settings_are_kept, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
