// The functions of UCX that are used, by their addresses. The library is loaded when it is first
// asked for, not with the program: it hooks into memory mapping and signals as soon as it is there,
// and need not be there at all. Any thread.
#pragma once

#include <ucp/api/ucp.h>

#include "base/result.h"

namespace sluice {

struct UcxLibrary {
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_signal) worker_signal = nullptr;
  decltype(&::ucp_listener_create) listener_create = nullptr;
  decltype(&::ucp_listener_destroy) listener_destroy = nullptr;
  decltype(&::ucp_listener_query) listener_query = nullptr;
  decltype(&::ucp_listener_reject) listener_reject = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush = nullptr;
  decltype(&::ucp_stream_send_nbx) stream_send = nullptr;
  decltype(&::ucp_stream_recv_nbx) stream_receive = nullptr;
  decltype(&::ucp_request_check_status) request_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
  ucp_context_h context = nullptr;  // of all workers

  // Loaded once; an error is the same from then on.
  static Result<const UcxLibrary*> get();
};

}  // namespace sluice
