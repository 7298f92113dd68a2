/* main.c: the program loopline. */
#include "cli/args.h"

int main(int argc, char **argv)
{
    return ll_main(argc, argv);
}
