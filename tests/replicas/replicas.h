/* replicas.h: runs of replicas on four ranks, and what their files hold. */
#pragma once
#include "replicas/loose.h"
#include "train/trainer.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_comm *comm;
static char folder[] = "/tmp/loopline-replicas-XXXXXX";

#define COMMON "parallel: {canonical: true}\ndata: {name: synthetic, samples: 96}\n"
static const char mlp[] =
    COMMON "model: {name: mlp, image: 9, width: 24}\n"
           "train: {batch: 16, steps: 8, lr: 0.1, log_every: 1, threads: 1}\n";
/* Batch norm: statistics. */
static const char normed[] =
    COMMON "model: {name: resnet18, image: 8, width: 4}\n"
           "train: {batch: 16, steps: 3, lr: 0.1, optimizer: momentum, threads: 1}\n";

/* Settings are words. */
static ll_run *make(const char *text, const char *settings, const char *name)
{
    ll_run *r;
    char words[512], *rest = NULL, out[128];
    snprintf(words, sizeof words, "%s", settings);
    snprintf(out, sizeof out, "out=%s/%s", folder, name);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_set(r, out));
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        no_error(ll_run_set(r, w));
    return r;
}

static ll_train_report train_by(const char *text, const char *settings, const char *name,
                                ll_train_opts o)
{
    ll_train_report report;
    ll_run *r = make(text, settings, name);
    no_error(ll_run_finish(r));
    o.comm = comm;
    ll_comm_trim(comm); /* of runs before */
    ll_err rc = ll_train(r, &o, &report);
    if (rc != LL_OK) fail_msg("%s: %s\n%s", settings, ll_error_text(), ll_error_frames());
    ll_run_free(r);
    no_error(ll_comm_barrier(comm));
    if (report.memory.tensors != report.memory.tensors_used)
        fail_msg("%s: %.0f bytes of tensors planned, %.0f used", settings, report.memory.tensors,
                 report.memory.tensors_used);
    return report;
}

/* from: a checkpoint to go on from; NULL: it begins. The last words are settings. */
__attribute__((format(printf, 4, 5))) static ll_train_report train(const char *text,
                                                                   const char *name,
                                                                   const char *from,
                                                                   const char *settings, ...)
{
    char words[512];
    va_list args;
    va_start(args, settings);
    vsnprintf(words, sizeof words, settings, args);
    va_end(args);
    return train_by(text, words, name, (ll_train_opts){.resume = from, .resume_from = from});
}

/* "stem" and a number, in one of two buffers that take turns. */
static const char *named(const char *stem, size_t i)
{
    static char names[2][32];
    static int turn;
    turn = !turn;
    snprintf(names[turn], sizeof names[turn], "%s%zu", stem, i);
    return names[turn];
}

static void same_file(const char *a, const char *b, const char *file)
{
    static char bytes[2][4 << 20];
    const char *const names[] = {a, b};
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s/%s", folder, names[i], file);
        FILE *f = fopen(path, "rb");
        if (!f) fail_msg("%s is not there", path);
        n[i] = fread(bytes[i], 1, sizeof bytes[i], f);
        fclose(f);
    }
    assert_true(n[0] > 0 && n[0] < sizeof bytes[0]);
    if (n[0] != n[1] || memcmp(bytes[0], bytes[1], n[0]))
        fail_msg("%s of %s differs from that of %s", file, a, b);
}

#define LAST "checkpoints/step-00000008.safetensors"

/* ---- what files hold ---- */

static const char *checkpoint(const char *name, int step)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d.safetensors", folder, name, step);
    return path;
}

static ll_st_file *open_last(const char *name, int step)
{
    ll_st_file *f;
    no_error(ll_st_open(checkpoint(name, step), &f));
    return f;
}

enum { MOST = 81 * 24 };
static const char weight[] = "fc1.weight";

/* who: a replica; -1: the average. */
static int64_t read_weight(const ll_st_file *f, int who, float out[MOST])
{
    char name[64] = "";
    ll_dtype t;
    ll_st_part part = {0};
    if (who >= 0) snprintf(name, sizeof name, "replica.%d.", who);
    strcat(name, weight);
    no_error(ll_st_want(f, name, &t, &part.shape));
    int64_t n = ll_numel(&part.shape);
    assert_true(n <= MOST);
    no_error(ll_st_read_part(f, name, &part, out));
    return n;
}

/* In a folder of their own. */
#define on_four_ranks(tests) run_group(tests, sizeof tests / sizeof *tests)
static int run_group(const struct CMUnitTest *tests, size_t n)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = "", .canonical = true}, &comm) !=
        LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    char command[64];
    bool made = ll_comm_rank(comm) || mkdtemp(folder);
    no_error(ll_comm_broadcast(comm, folder, sizeof folder, LL_U8, 0, NULL));
    int rc = made ? _cmocka_run_group_tests("replicas", tests, n, NULL, NULL) : 1;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    no_error(ll_comm_barrier(comm));
    if (ll_comm_rank(comm) == 0) rc |= system(command);
    ll_comm_close(comm);
    return rc;
}
