// vLLM's Control service and gRPC's health service, as far as this server has what they speak of:
// the table of gRPC methods, and what each does.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/openai.h"

namespace sluice {

class Service;
struct Call;
struct Route;

// As `routes`, by gRPC's paths ("/vllm.Inference/GenerateStream").
std::span<const Route> grpc_routes();
void serve_vllm_generate(Service& service, Call call);

inline constexpr std::string_view kHealthWatch = "/grpc.health.v1.Health/Watch";
inline constexpr int kServing = 1, kNotServing = 2, kServiceUnknown = 3;
// The service that a request for health names; empty: all of the server.
Refusal read_health_request(std::string_view message, std::string& service);
bool is_health_service(std::string_view name);
int grpc_health(Service& service);

}  // namespace sluice
