/* watch.h: no rank waits for ever. Each process has a thread that tells a hub (the thread of rank
 * 0) over a socket of its own, several times within the timeout, what its rank does: "in forward of
 * conv3 for 0.2 s", "waits in all-reduce 412 (fc1.weight) for 9.8 s". The hub sees when a rank's
 * connection ends without a goodbye (it died), when a rank is silent (it was stopped), and when one
 * waits longer than the timeout. Then it writes one report with every rank's state and sends it to
 * all; if the hub is gone, each rank reports for itself. A report sets the failure, which every
 * wait of comm/ checks; a process whose rank does not come back from its work within a grace period
 * after that is ended. The sockets are not MPI's, so a stuck MPI cannot keep the report back. */
#pragma once
#include "comm/transport.h"

typedef struct ll_watch ll_watch;

/* Collective over t (the addresses travel by its messages). mine: how opening went on this rank so
 * far; its failure becomes everyone's. With one rank there is nothing to watch: *out is NULL, which
 * all functions here accept. */
ll_err ll_watch_open(ll_transport *t, ll_err mine, double timeout_s, ll_watch **out);
/* Says goodbye: leaving early is no death. Local. */
void ll_watch_close(ll_watch *w);
LL_OWNED(ll_watch, ll_watch_close);
/* This rank works on what. Texts are copied here and below: they need not stay. */
void ll_watch_doing(ll_watch *w, const char *what);
/* The others are told now, not within the next period. */
void ll_watch_tell(ll_watch *w);
/* What it does may take long for reasons that are not its own (a disk): others wait ten timeouts.
 */
void ll_watch_slow(ll_watch *w, bool slow);
/* It is in a call that others must end, and which does not look at the watch. */
void ll_watch_held(ll_watch *w, bool held);
/* This rank waits in a collective, by name, number (-1: none) and site (may be NULL); and goes back
 * to what it was doing. */
void ll_watch_wait_begin(ll_watch *w, const char *what, int64_t number, const char *site);
void ll_watch_wait_end(ll_watch *w);
/* Something of what this rank waits for has arrived: the time of its wait begins anew, so that a
 * slow collective is no stall. Two stores, for every message. */
void ll_watch_moved(ll_watch *w);
/* This rank failed for reasons of its own: the others' watches fail with this text. Returns when it
 * was sent. */
void ll_watch_give_up(ll_watch *w, const char *text);
/* LL_OK, or the failure, LL_E_COMM with the report's text. Cheap: one load while all is well. */
ll_err ll_watch_check(ll_watch *w);
bool ll_watch_failed(const ll_watch *w);
