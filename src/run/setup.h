/* setup.h: graphs, data and sessions as a run wants them. */
#pragma once
#include "data/data.h"
#include "exec/session.h"
#include "run/run.h"

/* What a model of columns does not say of its sizes is taken from the table: features, and classes
 * or outputs; of a folder of pictures classes. */
ll_err ll_run_fit(ll_run *r);
/* The run's model for a batch of this many samples; optim NULL: for evaluation. */
ll_err ll_run_graph(const ll_run *r, int64_t batch, const ll_optim *optim, ll_graph **out);
/* For generation: how has batch, cache, step and the like. */
ll_err ll_run_generation(const ll_run *r, const ll_build *how, ll_graph **out);
/* Whether the run can be cut over this mesh: before ranks are started. */
ll_err ll_run_cut(const ll_run *r, const char *mesh);
/* What a graph takes, of one sample: its batch inputs; -1: they are more. */
int ll_run_fields(const ll_graph *g, ll_field out[LL_MAX_FIELDS]);
/* The run's dataset; checks that samples are what the model takes. */
ll_err ll_run_dataset(const ll_run *r, ll_dataset **out);
/* How sessions of the run are opened on the ranks of c, cut over a mesh; NULL: this process. */
ll_session_opts ll_run_session(const ll_run *r, ll_comm *c, const char *mesh);
/* The run's training graph and a session of it. Collective over o->comm, which binds its ranks to
 * cores. After a failure what was made is still the caller's to close. */
ll_err ll_run_compile(const ll_run *r, const ll_session_opts *o, ll_graph **g, ll_session **s);
/* How training samples are drawn and changed. */
ll_sampling ll_run_sampling(const ll_run *r);
/* This rank's samples of every micro-batch, from a step on. */
ll_err ll_run_loader(const ll_run *r, const ll_dataset *d, const ll_session *s, int64_t step,
                     ll_loader **out);
/* Of the model's samples at these positions the first with a number that is not finite (after
 * LL_E_NUMERIC), or with the index that the last error's message names: "x of sample 17 of a.npy is
 * nan"; NULL: none has. */
const char *ll_run_blame(const ll_graph *g, const ll_dataset *d, const ll_sampling *how,
                         int64_t from, int64_t n, ll_arena *a);
/* The next batch of the loader, which reads d, becomes the session's. */
ll_err ll_run_feed(const ll_run *r, const ll_dataset *d, ll_loader *l, ll_session *s);
/* Micro-batch `micro`, of so many samples here, of buffers that hold one after the other, by field:
 * those that the session's graph takes. */
ll_err ll_run_set_batch(const ll_data_info *info, ll_session *s, int micro, int64_t samples,
                        const void *const *data);
/* The graph's results that are scalars of the model's own: neither the loss, nor counted. They
 * live in the graph; returns how many. */
enum { LL_MAX_METRICS = 8, LL_METRIC_NAME = 48 };
int ll_run_metrics(const ll_graph *g, const char *names[LL_MAX_METRICS + 1]);
/* n random elements of batch data: normal ones, or labels and tokens that the model has. */
void ll_run_random(const ll_run *r, uint64_t seed, uint64_t stream, ll_dtype t, int64_t n,
                   void *data);
