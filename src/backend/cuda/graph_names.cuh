// Names of the kernels in a captured graph, for profiles. Used by the backend's thread.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::cuda {

// Nodes captured so far from a capturing stream; 0 if it is not capturing.
size_t num_captured_nodes(cudaStream_t stream) noexcept;
// One string per op: the names of its kernels with commas, without arguments and namespaces. Op i
// has the nodes [ends[i - 1], ends[i]). "?" for a kernel whose name the driver does not tell.
std::vector<std::string> kernel_names(cudaGraph_t graph, const std::vector<size_t>& ends);

}  // namespace sluice::cuda
