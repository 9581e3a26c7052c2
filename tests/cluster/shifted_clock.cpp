// A host whose wall clock is wrong: preloaded, it shifts CLOCK_REALTIME by SHIFT_S seconds, as a
// clock that is set wrongly does. Deadlines on that clock move with it; other clocks are right.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static long shift_s() {
  static const char *given = getenv("SHIFT_S");
  return given ? atol(given) : 0;
}
template <typename F> static F next(F, const char *name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
// A deadline of the kernel's clock; one of the monotonic clock is small, and stays.
static timespec kernel_time(const timespec *at) {
  timespec moved = *at;
  if (moved.tv_sec > 1000000000) moved.tv_sec -= shift_s();
  return moved;
}

extern "C" {
int clock_gettime(clockid_t clock, timespec *now) noexcept {
  static auto real = next(&clock_gettime, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += shift_s();
  return failed;
}
int gettimeofday(timeval *now, void *zone) noexcept {
  static auto real = next(&gettimeofday, "gettimeofday");
  int failed = real(now, zone);
  if (!failed) now->tv_sec += shift_s();
  return failed;
}
time_t time(time_t *now) noexcept {
  timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) *now = found.tv_sec;
  return found.tv_sec;
}
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *at) {
  static auto real = next(&pthread_cond_timedwait, "pthread_cond_timedwait");
  timespec moved = kernel_time(at);
  return real(condition, mutex, &moved);
}
int sem_timedwait(sem_t *semaphore, const timespec *at) {
  static auto real = next(&sem_timedwait, "sem_timedwait");
  timespec moved = kernel_time(at);
  return real(semaphore, &moved);
}
long syscall(long number, ...) noexcept {
  static auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  __builtin_va_list given;
  __builtin_va_start(given, number);
  long a[6];
  for (long &each : a) each = __builtin_va_arg(given, long);
  __builtin_va_end(given);
  timespec moved;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
    moved = kernel_time(reinterpret_cast<timespec *>(a[3]));
    a[3] = reinterpret_cast<long>(&moved);
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
}
