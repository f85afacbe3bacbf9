// Collectives between GPUs by NCCL.
#pragma once

#include <memory>

#include "core/collectives/device_plane.h"
#include "gpu/gpu_api.h"

namespace tfddl {

// `libraries`: empty means DefaultGpuLibraries() at the time of the first work for a GPU.
std::shared_ptr<DevicePlane> MakeNcclPlane(GpuLibraries libraries = {});

}  // namespace tfddl
