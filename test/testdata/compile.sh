# A C program with threads, built by make, run, and its crash seen.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat > main.c <<'C'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long part[4];

static void *sum(void *p) {
	long n = (long)p;
	for (long i = n; i < 1000; i += 4) part[n] += i;
	return NULL;
}

int main(int argc, char **argv) {
	pthread_t t[4];
	if (argc > 1) abort();
	for (long i = 0; i < 4; i++) if (pthread_create(&t[i], NULL, sum, (void *)i)) return 2;
	for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
	printf("%ld\n", part[0] + part[1] + part[2] + part[3]);
	return 0;
}
C
printf 'main: main.o\n\tcc -pthread -o $@ $<\nmain.o: main.c\n\tcc -O2 -Wall -Werror -pthread -c $<\nstatic: main.o\n\tcc -static -pthread -o $@ $<\n' > Makefile
make -s -j2 main static
[ "$(./main)" = 499500 ]
[ "$(./static)" = 499500 ]
code=0
./main crash 2> /dev/null || code=$?
[ "$code" = 134 ]
