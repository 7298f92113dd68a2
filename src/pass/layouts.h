/* layouts.h: layouts that are asked for by patterns of names (ll_layout_rule, loopline.h). */
#pragma once
#include "ir/ir.h"
#include "mesh/mesh.h"

/* What is asked of a value. */
typedef struct ll_pin {
    const ll_layout_rule *rule;
    ll_layout layout;
    int n_dim;
    uint8_t any; /* bit d: axes that the layout does not name may cut dimension d */
} ll_pin;

/* Reads one rule's layout; axes that the mesh does not have are left out. */
ll_err ll_pin_read(const ll_layout_rule *r, const ll_mesh *m, ll_pin *out);
/* pins [n_value]: what is asked of each value, or NULL. lenient: a pattern may match nothing. */
ll_err ll_pins_find(const ll_graph *g, const ll_mesh *m, const ll_layout_rule *rules, bool lenient,
                    ll_arena *arena, const ll_pin ***pins);
/* How a value lies in the end that a node leaves as made. */
ll_layout ll_pin_settle(const ll_pin *pin, const ll_layout *made);
