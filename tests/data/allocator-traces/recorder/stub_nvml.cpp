// NVML that knows no process and no fabric, so that the out-of-memory text has no line per process.
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** d) { *d = (void*)1; return 0; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* n, void*) { *n = 0; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* v) { *v = 13000; return 0; }
}
