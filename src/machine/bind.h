/* bind.h: which cores this process's threads run on. */
#pragma once
#include "comm/comm.h"

/* Binds the OpenMP threads to cores, one each, once per process, where there are as many as cores,
 * unless OMP_PROC_BIND or OMP_PLACES says otherwise. */
void ll_bind_threads(int threads);
/* Collective. How many threads each rank should have, where *threads is 0: as OMP_NUM_THREADS says
 * or as there are hardware threads, divided among the ranks that may run on the same ones; the same
 * number on all ranks. Each of these then keeps to cores of its own, where there are enough, its
 * threads fit, and the environment does not say otherwise. */
ll_err ll_bind_rank(ll_comm *c, int *threads);
bool ll_bind_owns_cores(void); /* Local: has ll_bind_rank given this rank cores of its own? */
