/* Scores one request, from a file, and writes the reply to another:
   cc example.c -o example -L. -lfreshet -Wl,-rpath,'$ORIGIN' && ./example '{"repository": "/models"}' request reply */
#include <stdio.h>
#include <stdlib.h>

#include "freshet.h"

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: example CONFIG REQUEST REPLY\n");
    return 2;
  }
  int state = 0;
  void *model = initialize("", argv[1], &state);
  if (state != 0) return 1;

  static char request[1 << 20];
  FILE *in = fopen(argv[2], "rb");
  if (in == NULL) return 1;
  int size = (int)fread(request, 1, sizeof request, in);
  fclose(in);

  void *reply = NULL;
  int reply_size = 0;
  int status = process(model, request, size, &reply, &reply_size);
  fprintf(stderr, "status %d, %d bytes\n", status, reply_size);
  if (status != 200) {
    fprintf(stderr, "%.*s\n", reply_size, (char *)reply);
  } else {
    FILE *out = fopen(argv[3], "wb");
    if (out == NULL) return 1;
    fwrite(reply, 1, reply_size, out);
    fclose(out);
  }
  free(reply);
  freshet_close(model);
  return status == 200 ? 0 : 1;
}
