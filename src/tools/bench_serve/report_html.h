// A load test as one HTML page that needs nothing else: tables and plots, light and dark.
#pragma once

#include <string>
#include <vector>

#include "tools/bench_serve/result.h"

namespace sluice {

struct ReportInfo {
  std::string url, model, endpoint, prompts, slo;
};

std::string html_report(const ReportInfo& info,
                        const std::vector<RunResult>& runs,
                        std::vector<Summary>& summaries);

}  // namespace sluice
