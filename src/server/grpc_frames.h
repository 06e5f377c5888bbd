// How answers to gRPC calls travel through a Responder, which knows bytes only: one frame per
// message, or a status as the last. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

struct GrpcFrame {
  enum Kind : char { message = 0, status = 1 };
  Kind kind = message;
  std::string_view payload;
  int http_status = 0;  // of a status: as HTTP would say it
};

// Appends the frame of a message.
void append_grpc_message(std::string& out, std::string_view message);
void append_grpc_status(std::string& out, int http_status, std::string_view text);
// Takes the frame at the beginning of `bytes`; false: it is not all there yet.
bool take_grpc_frame(std::string_view& bytes, GrpcFrame& frame);
// gRPC's code for an HTTP status.
int grpc_code(int http_status);

}  // namespace sluice
