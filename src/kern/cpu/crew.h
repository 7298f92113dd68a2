/* crew.h: threads that stay together for many kernels. */
#pragma once

/* Runs `lead` on this thread while others wait for what it makes in parts (ll_in_parts). Regions of
 * OpenMP's within it have one thread: for kernels that work in parts alone (`parts` of ll_solver).
 */
void ll_crew(int threads, void (*lead)(void *), void *given);
