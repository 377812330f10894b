/*
 * Asking Python.
 *
 * Handlers of signals, such as that of Ctrl-C, run in Python's main thread, and would within a callback, too: what one
 * raises there is lost, as is what the callback returns. So Python is asked in a thread that runs no handlers, and a
 * signal is handled when MXNet has returned. Whatever else may raise, an answer is written last of all.
 */
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <system_error>
#include <thread>

#include "legacy.h"

namespace graphopt {

thread_local std::string python_error;

/* Whether this thread holds Python's lock, as calls of MXNet by Cython do: another would wait for ever. */
bool HoldsPython() {
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check && check();
}

/* What a callback answers with, which is above 0; it fails if there is no answer. */
template <typename Callback, typename... Arguments>
int64_t Answer(Callback callback, Arguments... arguments) {
  int64_t answer = 0;
  std::string error = "Python was interrupted before it had an answer";
  const auto ask = [&] {
    python_error = error;
    callback(arguments..., &answer);
    error = python_error;
  };
  if (HoldsPython()) {
    ask();
  } else {
    try {
      std::thread(ask).join();
    } catch (const std::system_error&) {  // there are too many threads
      ask();
    }
  }
  if (answer <= 0) Fail(error);
  return answer;
}

}  // namespace graphopt
