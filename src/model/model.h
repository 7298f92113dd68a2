/* model.h: models that are not compiled in. */
#pragma once
#include "loopline.h"

/* A list, by next: ll_model_all and ll_model_find know them too, before the bundled ones. Once,
 * before those are called. */
void ll_models_add(const ll_model *list);
/* Loads a shared library (LL_EXPORT_MODELS), that is, runs its code; it stays. *out is its list. */
ll_err ll_models_load(const char *path, const ll_model **out);
