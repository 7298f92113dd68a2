/* gptq.h: weights of products rounded to blocks of 4 bits (pass/packed.h) so that what the products
 * make of data changes least, not the weights (Frantar et al., 2022). Windows of the training data
 * go through the model, and each product's inputs leave their second moments H = X^T X. Then each
 * row is rounded column by column, the column with the largest moment first, and what a column was
 * rounded by is made up for in those that follow, by H's Cholesky factor. */
#pragma once
#include "train/setup.h"

typedef struct ll_gptq ll_gptq;
/* Reads so many windows through the parameters of s, of this process alone. */
ll_err ll_gptq_open(const ll_run *r, ll_session *s, int64_t windows, ll_gptq **out);
void ll_gptq_close(ll_gptq *q);
LL_OWNED(ll_gptq, ll_gptq_close);
/* Makes n numbers, the parameter of that name, such that ll_pack changes nothing of them. Those
 * that no product reads in whole blocks stay as they are. */
ll_err ll_gptq_round(ll_gptq *q, const char *name, float *w, int64_t n);
/* All of s. */
ll_err ll_gptq_session(ll_gptq *q, ll_session *s);

/* w [rows,cols] by moments h [cols,cols]. */
ll_err ll_gptq_matrix(float *w, int64_t rows, int64_t cols, const float *h, int threads);
