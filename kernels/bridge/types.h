/*
 * What a call is compiled for, in one call from Python: autograd's state, and of each array where it is, its
 * dtype and its shape.
 */
#pragma once

#include <cstdint>

#include "arrays.h"

namespace graphopt {

/* Writes numbers that are equal where all of that is, and returns how many; -1 if there is no room for them, or
 * an array is not there. */
int64_t WriteTypes(void** arrays, int64_t count, int64_t* to, int64_t room) {
  constexpr int64_t kEach = 5;  // of an array, beside its extents
  bool is_recording = false, is_training = false;
  if (room < 2 || MXAutogradIsRecording(&is_recording) != 0 || MXAutogradIsTraining(&is_training) != 0)
    return -1;
  to[0] = is_recording;
  to[1] = is_training;
  int64_t used = 2;
  for (int64_t i = 0; i < count; ++i) {
    int storage, device, number, dtype, axes;
    const int* extents;
    if (MXNDArrayGetStorageType(arrays[i], &storage) != 0 ||
        MXNDArrayGetContext(arrays[i], &device, &number) != 0 ||
        MXNDArrayGetDType(arrays[i], &dtype) != 0 ||
        MXNDArrayGetShapeEx(arrays[i], &axes, &extents) != 0 || axes < 0 ||
        used + kEach + axes > room)
      return -1;
    for (int64_t fact : {storage, device, number, dtype, axes}) to[used++] = fact;
    for (int axis = 0; axis < axes; ++axis) to[used++] = extents[axis];
  }
  return used;
}

}  // namespace graphopt
