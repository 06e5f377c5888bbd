#include "backend/cuda/graph_names.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "backend/cuda/check.cuh"

namespace sluice::cuda {

namespace {

// The driver's own functions: cuBLAS launches kernels that the runtime has no name for.
struct Driver {
  PFN_cuGraphKernelNodeGetParams_v12000 get_params = nullptr;
  PFN_cuFuncGetName_v12030 function_name = nullptr;
  PFN_cuKernelGetName_v12030 kernel_name = nullptr;

  Driver() {
    find("cuGraphKernelNodeGetParams", 12000, get_params);
    find("cuFuncGetName", 12030, function_name);
    find("cuKernelGetName", 12030, kernel_name);
  }
  bool complete() const { return get_params && function_name && kernel_name; }

 private:
  template <typename F>
  static void find(const char* symbol, unsigned version, F& to) {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion(symbol, &f, version, cudaEnableDefault, &found) ==
            cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
      to = reinterpret_cast<F>(f);
    static_cast<void>(cudaGetLastError());
  }
};

// "void sluice::cuda::(anonymous namespace)::norm_kernel<float>(Args)" becomes
// "norm_kernel<float>".
std::string short_name(const char* mangled) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 && text ? text.get() : mangled;
  for (const char* prefix : {"void ", "sluice::cuda::", "(anonymous namespace)::"}) {
    for (size_t at; (at = name.find(prefix)) != std::string::npos;)
      name.erase(at, std::char_traits<char>::length(prefix));
  }
  // Arguments begin at the first parenthesis outside template brackets.
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0 && i > 0) return name.substr(0, i);
  }
  return name;
}

std::string name_of(const Driver& driver, cudaGraphNode_t node) {
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  if (!driver.complete() || driver.get_params(node, &params) != CUDA_SUCCESS) return "?";
  const char* name = nullptr;
  CUresult r = params.func   ? driver.function_name(&name, params.func)
               : params.kern ? driver.kernel_name(&name, params.kern)
                             : CUDA_ERROR_INVALID_VALUE;
  return r == CUDA_SUCCESS && name ? short_name(name) : "?";
}

}  // namespace

size_t num_captured_nodes(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  size_t num = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr) !=
          cudaSuccess ||
      !graph || cudaGraphGetNodes(graph, nullptr, &num) != cudaSuccess)
    return 0;
  return num;
}

std::vector<std::string> kernel_names(cudaGraph_t graph, const std::vector<size_t>& ends) {
  size_t num = 0;
  check(cudaGraphGetNodes(graph, nullptr, &num), "graph");
  std::vector<cudaGraphNode_t> nodes(num);
  if (num > 0) check(cudaGraphGetNodes(graph, nodes.data(), &num), "graph");
  Driver driver;
  std::vector<std::string> names;
  size_t at = 0;
  for (size_t end : ends) {
    std::string list;
    for (; at < end && at < num; ++at) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      check(cudaGraphNodeGetType(nodes[at], &type), "graph");
      if (!list.empty()) list += ", ";
      list += type == cudaGraphNodeTypeKernel   ? name_of(driver, nodes[at])
              : type == cudaGraphNodeTypeMemset ? "memset"
              : type == cudaGraphNodeTypeMemcpy ? "memcpy"
                                                : "other";
    }
    names.push_back(std::move(list));
  }
  return names;
}

}  // namespace sluice::cuda
