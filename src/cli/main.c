/* main.c: the program loopline. */
#include "loopline.h"

int main(int argc, char **argv)
{
    return ll_main(argc, argv, NULL);
}
