/* shapes.c: pictures to learn from: a disc and a square on a noisy ground, and for each picture a
 * map of what every pixel is. ./shapes FOLDER COUNT writes them as PNG, and FOLDER/shapes.csv.
 *
 *     cc -O2 shapes.c -lz -o shapes */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { SIDE = 32 };

static void put32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void chunk(FILE *f, const char *kind, const uint8_t *data, uint32_t n)
{
    uint8_t head[8], tail[4];
    put32(head, n);
    memcpy(head + 4, kind, 4);
    put32(tail, (uint32_t)crc32(crc32(0, head + 4, 4), data, n));
    fwrite(head, 1, 8, f);
    fwrite(data, 1, n, f);
    fwrite(tail, 1, 4, f);
}

static void png(const char *path, const uint8_t *pixels, int channels)
{
    static uint8_t rows[SIDE * (1 + 3 * SIDE)], packed[2 * sizeof rows];
    uLongf n = sizeof packed;
    uint8_t header[13] = {[8] = 8, [9] = channels == 3 ? 2 : 0};
    size_t row = (size_t)(channels * SIDE);
    put32(header, SIDE);
    put32(header + 4, SIDE);
    for (size_t y = 0; y < SIDE; y++) {
        rows[y * (row + 1)] = 0; /* no filter */
        memcpy(rows + y * (row + 1) + 1, pixels + y * row, row);
    }
    compress(packed, &n, rows, SIDE * (row + 1));
    FILE *f = fopen(path, "wb");
    if (!f) exit((perror(path), 1));
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, f);
    chunk(f, "IHDR", header, 13);
    chunk(f, "IDAT", packed, (uint32_t)n);
    chunk(f, "IEND", (const uint8_t *)"", 0);
    fclose(f);
}

static void draw(uint8_t *picture, uint8_t *map)
{
    int color[3][3], at[2][2], size[2];
    for (int i = 0; i < 9; i++) color[i / 3][i % 3] = 40 + rand() % 160;
    for (int i = 0; i < 4; i++) at[i / 2][i % 2] = 6 + rand() % (SIDE - 12);
    for (int i = 0; i < 2; i++) size[i] = 3 + rand() % 5;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            int dy = y - at[0][0], dx = x - at[0][1], what = 0;
            if (dy * dy + dx * dx <= size[0] * size[0]) what = 1;
            dy = abs(y - at[1][0]), dx = abs(x - at[1][1]);
            if (dy < size[1] && dx < size[1]) what = 2;
            map[y * SIDE + x] = (uint8_t)what;
            for (int c = 0; c < 3; c++)
                picture[(y * SIDE + x) * 3 + c] = (uint8_t)(color[what][c] + rand() % 40);
        }
}

int main(int argc, char **argv)
{
    char path[512];
    static uint8_t picture[SIDE * SIDE * 3], map[SIDE * SIDE];
    int count = argc == 3 ? atoi(argv[2]) : 0;
    if (count < 1) return fprintf(stderr, "usage: shapes FOLDER COUNT\n"), 2;
    mkdir(argv[1], 0777);
    snprintf(path, sizeof path, "%s/shapes.csv", argv[1]);
    FILE *list = fopen(path, "w");
    if (!list) return perror(path), 1;
    fprintf(list, "x,mask\n");
    for (int i = 0; i < count; i++) {
        draw(picture, map);
        snprintf(path, sizeof path, "%s/%05d.png", argv[1], i);
        png(path, picture, 3);
        snprintf(path, sizeof path, "%s/%05d_map.png", argv[1], i);
        png(path, map, 1);
        fprintf(list, "%05d.png,%05d_map.png\n", i, i);
    }
    return fclose(list) != 0;
}
