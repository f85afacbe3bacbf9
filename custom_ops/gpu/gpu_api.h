// The CUDA driver API and NCCL as tables of functions, opened at run time. The build needs no header, toolkit
// or library of either; a machine without a GPU never opens them.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

namespace tfddl {

// As in cuda.h (12) and nccl.h (2.18 to 2.31). Enumerations are ints, whose values never change.
struct CudaUuid {
  char bytes[16];
};
using CudaContext = struct CudaContextOpaque*;
using CudaStream = struct CudaStreamOpaque*;
using CudaEvent = struct CudaEventOpaque*;
using CudaMemory = unsigned long long;

constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;
constexpr unsigned kCudaStreamNonBlocking = 1;
constexpr unsigned kCudaEventDisableTiming = 2;

using NcclComm = struct NcclCommOpaque*;
struct NcclUniqueId {
  char internal[128];
};

constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;
constexpr int kNcclScalarHostImmediate = 1;

enum NcclType {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};
enum NcclRedOp { kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3, kNcclAvg = 4 };

// ncclConfig_t of NCCL 2.17. Newer libraries copy `size` bytes and use defaults for later fields.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};
static_assert(sizeof(NcclConfig) == 40, "padding at the end would be read as the next field");

#define TFDDL_CUDA_FUNCTIONS(X)                                    \
  X(cuInit, int, (unsigned))                                       \
  X(cuGetErrorString, int, (int, const char**))                    \
  X(cuDeviceGet, int, (int*, int))                                 \
  X(cuDeviceGetUuid_v2, int, (CudaUuid*, int))                     \
  X(cuDevicePrimaryCtxRetain, int, (CudaContext*, int))            \
  X(cuCtxPushCurrent_v2, int, (CudaContext))                       \
  X(cuCtxPopCurrent_v2, int, (CudaContext*))                       \
  X(cuCtxGetStreamPriorityRange, int, (int*, int*))                \
  X(cuStreamCreateWithPriority, int, (CudaStream*, unsigned, int)) \
  X(cuStreamWaitEvent, int, (CudaStream, CudaEvent, unsigned))     \
  X(cuEventCreate, int, (CudaEvent*, unsigned))                    \
  X(cuEventRecord, int, (CudaEvent, CudaStream))                   \
  X(cuEventQuery, int, (CudaEvent))                                \
  X(cuEventDestroy_v2, int, (CudaEvent))                           \
  X(cuMemsetD32Async, int, (CudaMemory, unsigned, size_t, CudaStream))

#define TFDDL_NCCL_FUNCTIONS(X)                                                           \
  X(ncclGetErrorString, const char*, (int))                                               \
  X(ncclGetUniqueId, int, (NcclUniqueId*))                                                \
  X(ncclCommInitRankConfig, int, (NcclComm*, int, NcclUniqueId, int, NcclConfig*))        \
  X(ncclCommDestroy, int, (NcclComm))                                                     \
  X(ncclCommAbort, int, (NcclComm))                                                       \
  X(ncclCommGetAsyncError, int, (NcclComm, int*))                                         \
  X(ncclGroupStart, int, ())                                                              \
  X(ncclGroupEnd, int, ())                                                                \
  X(ncclAllReduce, int, (const void*, void*, size_t, int, int, NcclComm, CudaStream))     \
  X(ncclReduce, int, (const void*, void*, size_t, int, int, int, NcclComm, CudaStream))   \
  X(ncclReduceScatter, int, (const void*, void*, size_t, int, int, NcclComm, CudaStream)) \
  X(ncclBroadcast, int, (const void*, void*, size_t, int, int, NcclComm, CudaStream))     \
  X(ncclAllGather, int, (const void*, void*, size_t, int, NcclComm, CudaStream))          \
  X(ncclSend, int, (const void*, size_t, int, int, NcclComm, CudaStream))                 \
  X(ncclRecv, int, (void*, size_t, int, int, NcclComm, CudaStream))                       \
  X(ncclRedOpCreatePreMulSum, int, (int*, void*, int, int, NcclComm))                     \
  X(ncclRedOpDestroy, int, (int, NcclComm))

// The paths or names of the libraries. Defaults: TFDDL_CUDA_LIBRARY and TFDDL_NCCL_LIBRARY, else NCCL's
// wheel, else the libraries of the system.
struct GpuLibraries {
  std::string cuda;
  std::string nccl;
};
GpuLibraries DefaultGpuLibraries();

// Sets the path of the library in the package nvidia-nccl-cu12. Python finds it.
void SetNcclWheel(const std::string& path);

// The version of the default NCCL; 0 and a sentence in *error if tfddl cannot use it.
int FindNccl(std::string* error);

struct GpuApi {
#define TFDDL_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  TFDDL_CUDA_FUNCTIONS(TFDDL_MEMBER)
  TFDDL_NCCL_FUNCTIONS(TFDDL_MEMBER)
#undef TFDDL_MEMBER
  int nccl_version = 0;   // 21903 is 2.19.3
  std::string nccl_path;  // of the opened file

  // Null and a sentence in *error if a library is missing, broken or too old. The libraries stay open until
  // the process ends.
  static std::unique_ptr<GpuApi> Open(const GpuLibraries& libraries, std::string* error);

  // Raise std::runtime_error with the name of the call, unless `code` is success (of NCCL: or in progress).
  void CheckCuda(int code, const char* call) const;
  void CheckNccl(int code, const char* call) const;
};

// "2.19.3"
std::string NcclVersionText(int version);

}  // namespace tfddl
