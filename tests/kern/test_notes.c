/* test_notes: every note is printed once, however many there are. */
#include "kern/notes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int lines(void)
{
    FILE *f = tmpfile();
    int c, n = 0;
    assert_non_null(f);
    ll_kern_notes_print(f);
    rewind(f);
    while ((c = fgetc(f)) != EOF) n += c == '\n';
    fclose(f);
    return n;
}

static void all_are_printed(void **state)
{
    (void)state;
    assert_int_equal(lines(), 0);
    for (int i = 0; i < 80; i++) ll_kern_note("head %d takes a plain, slow kernel", i / 2);
    assert_int_equal(lines(), 40);
    ll_kern_note("head %d takes a plain, slow kernel", 7);
    ll_kern_note("another");
    assert_int_equal(lines(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_are_printed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
