/* settings.c: what follows the name in a codec's text. */
#include "comm/codec_int.h"

#include <stdio.h>

ll_err ll_codec_bad(const ll_codec *k, const char *what)
{
    FAIL(LL_E_ARG, "codec \"%s\": %s; expected %s: %s", k->text, what, k->kind->form,
         k->kind->help);
}

ll_err ll_codec_int(const ll_codec *k, const char *text, int low, int high, int *out)
{
    char *end = NULL;
    long v = text ? strtol(text, &end, 10) : 0;
    if (!text || !*text) return ll_codec_bad(k, "a number is missing");
    if (*end || end == text || v < low || v > high) {
        char what[128];
        snprintf(what, sizeof what, "%.40s is not a whole number from %d to %d", text, low, high);
        return ll_codec_bad(k, what);
    }
    *out = (int)v;
    return LL_OK;
}
