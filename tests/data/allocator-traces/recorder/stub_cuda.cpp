// A stub CUDA runtime: memory bookkeeping only, no device. Addresses only grow.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
static size_t total() { static size_t t = strtoull(getenv("STUB_TOTAL"), nullptr, 10); return t; }
static size_t used = 0;
static char* next_address = (char*)0x7F0000000000;
static CUdeviceptr next_virtual = 0x500000000000ULL;
static std::map<void*, size_t> live;
static std::map<unsigned long long, size_t> handles;
static unsigned long long next_handle = 1;
static cudaError_t last = cudaSuccess;
extern "C" {
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { memset(p, 0, sizeof *p); strcpy(p->name, "stub"); p->totalGlobalMem = total(); p->major = 9; return cudaSuccess; }
cudaError_t cudaMalloc(void** p, size_t n) {
  if (used + n > total()) { last = cudaErrorMemoryAllocation; return last; }
  used += n; *p = next_address; next_address += n; live[*p] = n; return cudaSuccess; }
cudaError_t cudaFree(void* p) { auto it = live.find(p); if (it == live.end()) abort(); used -= it->second; live.erase(it); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) { *t = total(); *f = total() - used; return cudaSuccess; }
cudaError_t cudaGetLastError() { auto e = last; last = cudaSuccess; return e; }
const char* cudaGetErrorString(cudaError_t) { return "stub error"; }
const char* cudaGetErrorName(cudaError_t) { return "stubError"; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) { *s = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) { *s = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = 0; *b = 0; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = (cudaEvent_t)1; return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
static CUresult s_getattr(int* v, CUdevice_attribute, CUdevice) { *v = 0; return CUDA_SUCCESS; }
static CUresult s_devget(CUdevice* d, int) { *d = 0; return CUDA_SUCCESS; }
static CUresult s_reserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr, unsigned long long) { *p = next_virtual; next_virtual += n; return CUDA_SUCCESS; }
static CUresult s_addrfree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
static CUresult s_create(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* p, unsigned long long) {
  if (used + n > total()) return CUDA_ERROR_OUT_OF_MEMORY;
  used += n; *h = next_handle++; handles[*h] = n; return CUDA_SUCCESS; }
static CUresult s_release(CUmemGenericAllocationHandle h) { used -= handles[h]; handles.erase(h); return CUDA_SUCCESS; }
static CUresult s_map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
static CUresult s_unmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
static CUresult s_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
static CUresult s_err(CUresult, const char** s) { *s = "stub"; return CUDA_SUCCESS; }
static CUresult s_gran(size_t* g, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) { *g = 2 << 20; return CUDA_SUCCESS; }
static void s_abort() { abort(); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* s, void** f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* q) {
  std::string n(s); if (q) *q = cudaDriverEntryPointSuccess;
  if (n == "cuDeviceGetAttribute") *f = (void*)s_getattr; else if (n == "cuDeviceGet") *f = (void*)s_devget;
  else if (n == "cuMemAddressReserve") *f = (void*)s_reserve; else if (n == "cuMemAddressFree") *f = (void*)s_addrfree;
  else if (n == "cuMemCreate") *f = (void*)s_create; else if (n == "cuMemRelease") *f = (void*)s_release;
  else if (n == "cuMemMap") *f = (void*)s_map; else if (n == "cuMemUnmap") *f = (void*)s_unmap;
  else if (n == "cuMemSetAccess") *f = (void*)s_access; else if (n == "cuGetErrorString") *f = (void*)s_err;
  else if (n == "cuMemGetAllocationGranularity") *f = (void*)s_gran; else *f = (void*)s_abort;
  return cudaSuccess; }
cudaError_t cudaGetDriverEntryPoint(const char* s, void** f, unsigned long long fl, cudaDriverEntryPointQueryResult* q) { return cudaGetDriverEntryPointByVersion(s, f, 12000, fl, q); }
}
