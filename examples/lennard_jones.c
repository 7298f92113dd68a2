/* lennard_jones.c: a molecular-dynamics force field as a graph. The energy of n particles is
 * declared; the forces are minus its gradient by the positions, which ll_grad appends. The program
 * holds the forces against finite differences, then moves the particles by velocity Verlet and
 * watches the total energy stay put.
 *
 *     cc lennard_jones.c $(pkg-config --cflags --libs loopline) -lm && ./a.out */
#include <loopline.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 8, STEPS = 400 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) {                                                                     \
            fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* E = sum over pairs of 4 (r^-12 - r^-6), in f64. pairs [n,n] is 1 where i != j. */
static ll_graph *declare(void)
{
    ll_graph *g = ll_graph_new("lennard-jones");
    ll_val x = ll_batch(g, "x", LL_F64, LL_SHAPE(N, 3));
    ll_val pairs = ll_batch(g, "pairs", LL_F64, LL_SHAPE(N, N));
    ll_val xi = ll_broadcast(g, x, "ic->ijc", LL_SHAPE(N, N, 3));
    ll_val xj = ll_broadcast(g, x, "jc->ijc", LL_SHAPE(N, N, 3));
    ll_val d = ll_sub(g, xi, xj);
    ll_val r2 = ll_sum(g, ll_square(g, d), "ijc->ij");
    ll_val one = ll_fill(g, LL_F64, LL_SCALAR, 1);
    r2 = ll_add(g, r2, ll_sub(g, one, pairs)); /* 1 on the diagonal: no division by zero */
    ll_val inv2 = ll_div(g, one, r2);
    ll_val inv6 = ll_mul(g, inv2, ll_mul(g, inv2, inv2));
    ll_val pair = ll_mul(g, pairs, ll_sub(g, ll_square(g, inv6), inv6));
    ll_val energy = ll_scale(g, ll_sum_all(g, pair), 2); /* 4, each pair counted twice */
    ll_val force;
    ll_grad(g, energy, &x, 1, &force);
    ll_graph_result(g, "energy", energy);
    ll_graph_result(g, "force", ll_neg(g, force));
    return g;
}

static double energy(ll_session *s, double x[N][3], double f[N][3])
{
    MUST(ll_session_set(s, "x", 0, x, sizeof(double[N][3])));
    MUST(ll_session_run(s, 0));
    if (f) MUST(ll_session_get(s, "force", f, sizeof(double[N][3])));
    return ll_session_result(s, "energy");
}

static double check_forces(ll_session *s, double x[N][3])
{
    double f[N][3], worst = 0, h = 1e-5;
    energy(s, x, f);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 3; c++) {
            double at = x[i][c];
            x[i][c] = at + h;
            double up = energy(s, x, NULL);
            x[i][c] = at - h;
            double down = energy(s, x, NULL);
            x[i][c] = at;
            double want = -(up - down) / (2 * h);
            worst = fmax(worst, fabs(want - f[i][c]) / (1 + fabs(want)));
        }
    return worst;
}

static double kinetic(double v[N][3])
{
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 3; c++) sum += 0.5 * v[i][c] * v[i][c];
    return sum;
}

int main(void)
{
    double x[N][3], v[N][3] = {{0}}, f[N][3], pairs[N][N], dt = 0.002;
    for (int i = 0; i < N; i++) { /* a cube a little larger than its rest size, one corner moved */
        for (int c = 0; c < 3; c++) x[i][c] = 1.2 * ((i >> c) & 1) + (i == 0 ? -0.1 : 0);
        for (int j = 0; j < N; j++) pairs[i][j] = i != j;
    }
    ll_graph *g = declare();
    ll_session *s;
    MUST(ll_session_open(g, &(ll_session_opts){.machine = "ref"}, &s));
    MUST(ll_session_set(s, "pairs", 0, pairs, sizeof pairs));
    double worst = check_forces(s, x);
    printf("forces against finite differences: worst relative difference %.1e\n", worst);

    double start = energy(s, x, f) + kinetic(v), drift = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++)
            for (int c = 0; c < 3; c++) {
                v[i][c] += 0.5 * dt * f[i][c];
                x[i][c] += dt * v[i][c];
            }
        double potential = energy(s, x, f);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < 3; c++) v[i][c] += 0.5 * dt * f[i][c];
        double total = potential + kinetic(v);
        drift = fmax(drift, fabs(total - start));
        if (step % 100 == 99)
            printf("step %4d  potential %9.5f  kinetic %8.5f  total %9.5f\n", step + 1, potential,
                   kinetic(v), total);
    }
    printf("total energy moved by at most %.1e in %d steps\n", drift, STEPS);
    ll_session_close(s);
    ll_graph_free(g);
    return worst < 1e-6 && drift < 1e-2 ? 0 : 1;
}
