/* pth.h: a state_dict as torch.save writes it: a zip file of a pickle and one entry for each
 * storage, or, before 1.6, pickles and storages one after another. A pickle is a program; this
 * reader executes none of it: it knows the opcodes that dictionaries of tensors are written with,
 * and of functions only the names that rebuild one. Whatever else is there is refused by its
 * name. */
#pragma once
#include "weights/weights.h"

/* Fills w->all, w->n, pointing into the bytes. */
ll_err ll_pth_parse(const uint8_t *bytes, size_t size, ll_weights *w);
