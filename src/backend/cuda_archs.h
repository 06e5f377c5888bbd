// The list of GPU architectures that a build has code for (SLUICE_CUDA_ARCHS): "90a 80-virtual".
// Code for "90a" runs on 9.0 alone, code for "80" on 8.0 and later 8.x but 8.7 (Jetson), which runs
// "87" alone. "80-virtual" is PTX, which the driver compiles for 8.0 and everything later.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

bool arch_runs_on(std::string_view archs, int major, int minor);
// Whether the list has code that is `arch`'s own, to the letter.
bool has_arch(std::string_view archs, std::string_view arch);
// The entry that a GPU wants: "86", "90a".
std::string arch_of(int major, int minor);

}  // namespace sluice
