// libcurand.so.10 of an emulated machine: candle makes a generator for each device. Nothing of ours draws from it, so drawing
// fails.

#define API extern "C" __attribute__((visibility("default")))

static const int SUCCESS = 0, LAUNCH_FAILURE = 201;

API int curandCreateGenerator(void** generator, int) {
    *generator = new int(0);
    return SUCCESS;
}

API int curandDestroyGenerator(void* generator) {
    delete static_cast<int*>(generator);
    return SUCCESS;
}

API int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }
API int curandSetGeneratorOffset(void*, unsigned long long) { return SUCCESS; }
API int curandSetStream(void*, void*) { return SUCCESS; }
API int curandGenerateUniform(void*, float*, unsigned long) { return LAUNCH_FAILURE; }
API int curandGenerateNormal(void*, float*, unsigned long, float, float) { return LAUNCH_FAILURE; }
