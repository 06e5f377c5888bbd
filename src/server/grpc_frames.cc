#include "server/grpc_frames.h"

namespace sluice {

namespace {

constexpr size_t kFrameHead = 7;  // kind, status (2), size of the payload (4)

void append_grpc_frame(std::string& out,
                       GrpcFrame::Kind kind,
                       int status,
                       std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  out += kind;
  for (int shift : {0, 8}) out += static_cast<char>(status >> shift);
  for (int shift : {0, 8, 16, 24}) out += static_cast<char>(size >> shift);
  out += payload;
}

}  // namespace

void append_grpc_message(std::string& out, std::string_view message) {
  append_grpc_frame(out, GrpcFrame::message, 0, message);
}

void append_grpc_status(std::string& out, int http_status, std::string_view text) {
  append_grpc_frame(out, GrpcFrame::status, http_status, text);
}

bool take_grpc_frame(std::string_view& bytes, GrpcFrame& frame) {
  if (bytes.size() < kFrameHead) return false;
  auto at = [&](size_t i) { return uint32_t{static_cast<uint8_t>(bytes[i])}; };
  const size_t size = at(3) | at(4) << 8 | at(5) << 16 | at(6) << 24;
  if (bytes.size() - kFrameHead < size) return false;
  frame.kind = static_cast<GrpcFrame::Kind>(bytes[0]);
  frame.http_status = static_cast<int>(at(1) | at(2) << 8);
  frame.payload = bytes.substr(kFrameHead, size);
  bytes.remove_prefix(kFrameHead + size);
  return true;
}

int grpc_code(int http_status) {
  switch (http_status) {
    case 200:
      return 0;
    case 400:
      return 3;  // INVALID_ARGUMENT
    case 401:
      return 16;  // UNAUTHENTICATED
    case 403:
      return 7;  // PERMISSION_DENIED
    case 404:
      return 5;  // NOT_FOUND
    case 413:
    case 429:
      return 8;  // RESOURCE_EXHAUSTED
    case 499:
      return 1;  // CANCELLED
    case 501:
      return 12;  // UNIMPLEMENTED
    case 503:
      return 14;  // UNAVAILABLE
    case 504:
      return 4;  // DEADLINE_EXCEEDED
    default:
      return http_status < 500 ? 3 : 13;  // INTERNAL
  }
}

}  // namespace sluice
