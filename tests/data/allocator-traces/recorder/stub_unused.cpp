// Runtime calls that the allocator links against and never makes here.
#include <cstdlib>
extern "C" {
#define NO(name) void name() { abort(); }
NO(cudaDeviceCanAccessPeer) NO(cudaDeviceEnablePeerAccess) NO(cudaDeviceGetDefaultMemPool) NO(cudaEventElapsedTime)
NO(cudaFreeAsync) NO(cudaGraphNodeGetDependencies) NO(cudaIpcCloseMemHandle) NO(cudaIpcGetMemHandle) NO(cudaIpcOpenMemHandle)
NO(cudaMallocAsync) NO(cudaMemPoolGetAttribute) NO(cudaMemPoolSetAccess) NO(cudaMemPoolSetAttribute) NO(cudaMemPoolTrimTo)
NO(cudaMemcpy) NO(cudaMemcpyAsync) NO(cudaMemcpyPeerAsync) NO(cudaStreamCreateWithPriority) NO(cudaStreamWaitEvent)
}
