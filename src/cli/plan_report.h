/* plan_report.h: pictures of a search. */
#pragma once
#include "plan/search.h"

/* Timeline, memory, roofline, scaling, time against cost: one HTML file. */
ll_err ll_plan_report(const char *path, const ll_search *s, const ll_found *f, int top,
                      double tokens);
/* The simulated pipeline as a Chrome trace. */
ll_err ll_plan_trace(const char *path, const ll_search *s, const ll_candidate *c);
