// sluice plan table: devices x weight formats x batches. Pure functions, and the command.
#pragma once

#include <span>
#include <string>

#include "tools/plan/derive.h"

namespace sluice {

struct TableFormat {
  const char* name;
  double bits;  // per weight; 0: as in the file
  WeightUse use;
};
std::span<const TableFormat> table_formats();

struct TableCell {
  int batch = 0;
  bool fits = false;
  double rate = 0;         // output tokens per second
  double step = 0;         // seconds between two tokens
  double ttft = 0;         // seconds of a prompt alone
  double per_million = 0;  // dollars per million output tokens; 0: nobody knows the price
  const char* bound = "";  // what takes the longest: weights, arithmetic, KV
};

TableCell table_cell(const SolModel& model,
                     const StepCost& cost,
                     double memory,
                     double price,
                     int batch,
                     int context,
                     int prompt);

}  // namespace sluice
