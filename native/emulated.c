// Calls a kernel that was built for another processor, under an emulator; native/emulated.py compiles and starts it.
//
//     emulated KERNEL FUNCTION JOB ARRAY…
//
// JOB holds a VqJob or VqLloydJob of worker.hpp, which begin with the addresses of their arrays: those of the files ARRAY
// are put there, "-" for none. After the call all files are written back. The exit status is the kernel's.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostArrays = 6, kTrouble = 99 };

struct Array {
    const char* path;
    void* values;
    long size;
};

static void fail(const char* what) {
    fprintf(stderr, "%s\n", what);
    exit(kTrouble);
}

static struct Array loaded(const char* path) {
    struct Array array = {path, NULL, 0};
    FILE* file = fopen(path, "rb");
    if (file == NULL) fail(path);
    fseek(file, 0, SEEK_END);
    array.size = ftell(file);
    rewind(file);
    array.values = aligned_alloc(64, (array.size / 64 + 1) * 64);
    if (array.values == NULL || fread(array.values, 1, array.size, file) != (size_t)array.size) fail(path);
    fclose(file);
    return array;
}

static void write_back(struct Array array) {
    FILE* file = fopen(array.path, "wb");
    if (file == NULL || fwrite(array.values, 1, array.size, file) != (size_t)array.size) fail(array.path);
    fclose(file);
}

int main(int count, char** arguments) {
    if (count < 5 || count > 4 + kMostArrays) fail("emulated KERNEL FUNCTION JOB ARRAY...");
    void* kernel = dlopen(arguments[1], RTLD_NOW);
    if (kernel == NULL) fail(dlerror());
    int32_t (*function)(void*) = (int32_t(*)(void*))dlsym(kernel, arguments[2]);
    if (function == NULL) fail(dlerror());
    struct Array job = loaded(arguments[3]), arrays[kMostArrays];
    const int given = count - 4;
    for (int i = 0; i < given; ++i) {
        memset(&arrays[i], 0, sizeof arrays[i]);
        if (strcmp(arguments[4 + i], "-") != 0) arrays[i] = loaded(arguments[4 + i]);
        ((void**)job.values)[i] = arrays[i].values;
    }
    const int32_t status = function(job.values);
    for (int i = 0; i < given; ++i)
        if (arrays[i].values != NULL) write_back(arrays[i]);
    write_back(job);
    return status;
}
