// Memory of machines with several nodes (sockets, or parts of one): large buffers are spread over
// the nodes whose cores run our threads, page by page, so that every step reads with the bandwidth
// of all of them. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace sluice {

// Nodes that have any of these CPUs, ascending, from a directory like /sys/devices/system/node.
std::vector<int> nodes_of(std::span<const int> cpus, const std::string& directory);

// The nodes that large buffers are spread over; empty where there is one node, or where the process
// was started with a memory policy of its own (numactl). Found once.
const std::vector<int>& memory_nodes();

// Spreads pages that nobody has touched yet over these nodes. False with errno where the system
// refuses (a container without the right): then they go where they are touched first, as ever.
bool spread_over(std::span<const int> nodes, void* data, size_t bytes);

}  // namespace sluice
