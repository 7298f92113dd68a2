/* process.h: what the system says of this process. */
#pragma once
#include "base/err.h"

double ll_process_age(void);   /* seconds that it has run; NaN: not known */
size_t ll_process_bytes(void); /* in memory now: all of it, libraries too; 0: not known */
size_t ll_process_peak(void);  /* the most that it ever had (VmHWM); 0: not known */
