/* host.h: what machines share whose kernels, or collectives, work in this process's memory. */
#pragma once
#include "machine/machine.h"

/* ---- host.c ---- */
size_t ll_host_memory(void); /* bytes that this machine has */
ll_err ll_host_map(ll_exec *e, size_t bytes, char **out);
ll_err ll_host_init(ll_exec *e, int slot);
void ll_host_unmap(ll_exec *e, size_t bytes);
void *ll_host_view(const ll_exec *e, int slot);
ll_err ll_host_put(const ll_exec *e, int slot, int micro, const void *data);
ll_err ll_host_read(const ll_exec *e, int slot, void *to);
ll_err ll_host_begin(ll_exec *e, uint64_t step);
ll_err ll_host_map_aside(ll_exec *e, size_t bytes, char **out);
ll_err ll_host_copy(ll_exec *e, ll_bound *b);
ll_err ll_host_copy_wait(ll_exec *e, ll_bound *b);
#define LL_HOST_MEMORY                                                                             \
    .overlaps = true, .map = ll_host_map, .init = ll_host_init, .close = ll_host_unmap,            \
    .view = ll_host_view, .put = ll_host_put, .read = ll_host_read, .begin = ll_host_begin,        \
    .map_aside = ll_host_map_aside, .copy = ll_host_copy, .copy_wait = ll_host_copy_wait

/* ---- link_host.c ---- */
extern const ll_link ll_link_host;
ll_err ll_host_open(ll_exec *e);
void ll_host_close(ll_exec *e);
ll_err ll_host_start(ll_exec *e, ll_bound *b);
ll_err ll_host_wait(ll_exec *e, ll_bound *b);
