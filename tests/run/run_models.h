/* run_models.h: two models of our own in place of the real ones, so that tests of run files do not
 * change when models do. Defining them here keeps the linker from taking src/model/registry.c. */
#pragma once
#include "loopline.h"

#include <string.h>

static const ll_model picture = {
    .name = "picture", .input = "image", .sizes = {{"height", 28, ""}, {"classes", 10, ""}}};
static const ll_model sentence = {
    .name = "sentence", .input = "tokens", .sizes = {{"layers", 4, ""}, {"width", 256, ""}}};

const ll_model *const *ll_model_all(void)
{
    static const ll_model *const all[] = {&picture, &sentence, NULL};
    return all;
}

const ll_model *ll_model_find(const char *name)
{
    for (const ll_model *const *m = ll_model_all(); *m; m++)
        if (!strcmp((*m)->name, name)) return *m;
    return NULL;
}
