/* A CUDA driver that launches nothing and remembers what it was asked: to see what a plugin does without a GPU. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

char fake_log[65536];
void* fake_context = (void*)0x10;
int fake_launch_status = 0;

static void say(const char* text) { strncat(fake_log, text, sizeof fake_log - strlen(fake_log) - 1); }

int cuCtxGetCurrent(void** context) {
  *context = fake_context;
  return 0;
}
int cuModuleLoadData(void** module, const unsigned char* image) {
  char text[64];
  snprintf(text, sizeof text, "load %c%c%c machine %d\n", image[1], image[2], image[3], image[18]);
  say(text);
  *module = (void*)0x20;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = (void*)name;
  return module == (void*)0x20 ? 0 : 400;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  char text[128];
  snprintf(text, sizeof text, "attribute %s %d = %d\n", (char*)function, attribute, value);
  say(text);
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** args, void** extra) {
  char text[256];
  snprintf(text, sizeof text, "launch %s grid %u,%u,%u block %u,%u,%u shared %u stream %p extra %d args", (char*)function, gx,
           gy, gz, bx, by, bz, shared, stream, extra != 0);
  say(text);
  for (int k = 0; args[k] != 0; ++k) {
    int64_t word;
    memcpy(&word, args[k], strcmp(function, "scale") == 0 && k > 4 ? 4 : 8);
    if (strcmp(function, "scale") == 0 && k > 4) word = (int32_t)word;
    snprintf(text, sizeof text, " %lld", (long long)word);
    say(text);
  }
  say("\n");
  return fake_launch_status;
}
