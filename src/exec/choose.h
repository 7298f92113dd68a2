/* choose.h: ways of convolutions measured on this machine, once for each kind, and kept. */
#pragma once
#include "comm/comm.h"
#include "program/program.h"
#include "program/ways.h"

/* Reads what is kept, measures what the program has besides, and keeps it: the same table on every
 * rank. cuts: also with fewer images at once. c: NULL: this process alone; otherwise collective.
 * path: where it is kept; NULL: nowhere. */
ll_err ll_choose_ways(const ll_program *p, ll_comm *c, bool cuts, ll_ways *out, const char **path);
