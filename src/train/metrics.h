/* metrics.h: one JSON object a line, appended as training goes:
 *
 *     {"step":120,"loss":0.5312,"lr":0.001}
 *
 * What one seed always gives goes to metrics.jsonl, so two runs of one seed have the same file to
 * the byte; times and rates go to a second such file, timing.jsonl. A run that resumes drops the
 * lines after its checkpoint's step and goes on as if it had never stopped. */
#pragma once
#include "base/err.h"

#include <jansson.h>
#include <math.h>

typedef struct ll_metrics ll_metrics;

/* NaN: there is none. */
static inline double ll_json_number(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Shows every whole line up to a step (each NULL: to nobody); *kept: the bytes of these. */
ll_err ll_metrics_lines(const char *path, int64_t keep_to,
                        void (*each)(void *context, int64_t step, const json_t *line),
                        void *context, size_t *kept);

/* keep_to: lines of later steps are removed, and so is a last line that a killed process left
 * unfinished; -1: the file starts empty. */
ll_err ll_metrics_open(const char *path, int64_t keep_to, ll_metrics **out);
/* A line: begin, its values in the order wanted, end (which writes it). Numbers read back as the
 * same numbers; those that are not finite become null. */
void ll_metrics_begin(ll_metrics *m, int64_t step);
void ll_metrics_int(ll_metrics *m, const char *key, int64_t value);
void ll_metrics_num(ll_metrics *m, const char *key, double value);
ll_err ll_metrics_end(ll_metrics *m);
/* Lines that find the disk full are written later. last: now, or fail. */
ll_err ll_metrics_flush(ll_metrics *m, bool last);
void ll_metrics_close(ll_metrics *m);
