/* value.h: the value of an elementwise op in double, from the list in kern/attr.h. */
#pragma once
#include "kern/attr.h"

double ll_ew_value(ll_ew op, double a, double b, double c, double k);
int ll_ew_operands(ll_ew op);
