// What `laggard` is made of: streams, memory, and what torch asks of a device. `laggard.cpp` says what it guarantees.

#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <thread>

namespace {

using at::Tensor;
using c10::IValue;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2;
constexpr size_t WINDOW = size_t(1) << 36;  // addresses only: pages that nobody writes cost nothing

// -- streams ---------------------------------------------------------------------------------------------------------

struct Queue {
  std::deque<std::function<void()>> tasks;
  uint64_t queued = 0, done = 0;  // how many so far
  bool is_running = false;  // a task of it, in some thread
  std::condition_variable to_do, advanced;  // its own: queues are never freed, and nobody else is to be woken
};

struct Mark {  // a place in a queue: what an event is
  Queue* queue = nullptr;
  uint64_t place = 0;
};

struct Counters {
  int64_t copies_down = 0, copies_up = 0, bytes_down = 0, bytes_up = 0, synchronisations = 0, kernels = 0;
};

std::mutex& lock = *new std::mutex;  // never destroyed: threads outlive the interpreter
auto& queues = *new std::vector<std::vector<Queue*>>(DEVICES);
Counters counters;
bool is_lazy = true;
int slow_us = 0;
std::mt19937& chance = *new std::mt19937(0);
std::string& failure = *new std::string;
auto& plain_thread = *new at::ThreadLocalState;  // no mode of the thread that waits is to reach a task

void run_next(Queue* queue, std::unique_lock<std::mutex>& held) {
  auto task = std::move(queue->tasks.front());
  queue->tasks.pop_front();
  queue->is_running = true;
  const int delay = slow_us && chance() % 4 == 0 ? int(chance() % (8 * slow_us)) : 0;
  held.unlock();
  if (delay) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  std::string problem;
  try {
    const at::ThreadLocalStateGuard plain(plain_thread);
    task();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  task = nullptr;
  held.lock();
  if (!problem.empty() && failure.empty()) failure = problem;
  queue->is_running = false;
  queue->done++;
  queue->advanced.notify_all();
}

void work(Queue* queue) {
  at::set_num_threads(1);
  std::unique_lock<std::mutex> held(lock);
  while (true) {
    queue->to_do.wait(held, [&] { return !is_lazy && !queue->tasks.empty() && !queue->is_running; });
    run_next(queue, held);
  }
}

Queue* new_queue(int device) {
  std::lock_guard<std::mutex> held(lock);
  auto* queue = new Queue;
  queues[device].push_back(queue);
  std::thread(work, queue).detach();
  return queue;
}

Queue* queue_of(c10::Stream stream) {
  const int device = stream.device_index();
  if (queues[device].empty()) new_queue(device);
  return queues[device][stream.id()];
}

Mark put(Queue* queue, std::function<void()> task) {
  std::lock_guard<std::mutex> held(lock);
  queue->tasks.push_back(std::move(task));
  if (!is_lazy) queue->to_do.notify_one();
  return {queue, ++queue->queued};
}

Mark end_of(Queue* queue) {
  std::lock_guard<std::mutex> held(lock);
  return {queue, queue->queued};
}

// Whoever waits for a late device does its work meanwhile, up to the mark: a change of threads costs more than a kernel.
void until(const Mark& mark) {
  if (!mark.queue) return;
  Queue* queue = mark.queue;
  std::unique_lock<std::mutex> held(lock);
  while (queue->done < mark.place) {
    if (is_lazy && !queue->is_running)
      run_next(queue, held);
    else
      queue->advanced.wait(held);
  }
  if (!is_lazy) queue->to_do.notify_one();
}

bool ask(const Mark& mark) {  // whether it has happened; if not, it will have when somebody asks again
  std::unique_lock<std::mutex> held(lock);
  const bool has_happened = !mark.queue || mark.queue->done >= mark.place;
  held.unlock();
  if (!has_happened && is_lazy) until(mark);
  return has_happened;
}

void host_waits(const Mark& mark) {
  std::optional<pybind11::gil_scoped_release> without;
  if (PyGILState_Check()) without.emplace();
  until(mark);
  std::lock_guard<std::mutex> held(lock);
  counters.synchronisations++;
  if (!failure.empty()) {
    const std::string said = std::exchange(failure, "");
    TORCH_CHECK(false, "laggard: a kernel failed: ", said);
  }
}

thread_local int current_device = 0;
thread_local int64_t current_stream[DEVICES] = {};

c10::Stream stream_on(int device) {
  return c10::Stream(c10::Stream::UNSAFE, {KIND, c10::DeviceIndex(device)}, current_stream[device]);
}

Queue* current_queue(int device) { return queue_of(stream_on(device)); }

// -- memory ----------------------------------------------------------------------------------------------------------

struct Block {
  size_t size;
  int device;
  Queue* stream;
  std::set<Queue*> others;  // that use it, too
};

struct Memory {
  char* window = reserve(PROT_NONE);  // what tensors have as addresses
  char* real = reserve(PROT_READ | PROT_WRITE);
  size_t used = 4096;
  std::map<char*, Block> blocks;
  std::map<std::tuple<int, Queue*, size_t>, std::vector<char*>> spare;
  std::vector<std::pair<std::vector<Mark>, std::pair<char*, Block>>> leaving;  // freed, and others may still use it

  static char* reserve(int rights) {
    void* found = mmap(nullptr, WINDOW, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(found != MAP_FAILED, "laggard: no addresses");
    return static_cast<char*>(found);
  }

  char* seen_by_device(const void* pointer) { return real + (static_cast<const char*>(pointer) - window); }

  void recycle(char* pointer, const Block& block) {
    char* bytes = seen_by_device(pointer);
    const size_t size = block.size;
    block.stream->tasks.emplace_back([bytes, size] { std::memset(bytes, 0xFF, size); });
    block.stream->queued++;
    spare[{block.device, block.stream, size}].push_back(pointer);
    if (!is_lazy) block.stream->to_do.notify_one();
  }

  char* take(size_t wanted) {
    Queue* queue = current_queue(current_device);
    std::lock_guard<std::mutex> held(lock);
    for (size_t i = leaving.size(); i-- > 0;) {
      auto& marks = leaving[i].first;
      if (std::all_of(marks.begin(), marks.end(), [](const Mark& m) { return m.queue->done >= m.place; })) {
        recycle(leaving[i].second.first, leaving[i].second.second);
        leaving.erase(leaving.begin() + i);
      }
    }
    const size_t size = (std::max<size_t>(wanted, 1) + 511) / 512 * 512;
    auto& free = spare[{current_device, queue, size}];
    char* pointer = nullptr;
    if (!free.empty()) {
      pointer = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK(used + size <= WINDOW, "laggard: out of memory");
      pointer = window + used;
      used += size;
      std::memset(seen_by_device(pointer), 0xFF, size);
    }
    blocks[pointer] = Block{size, current_device, queue, {}};
    return pointer;
  }

  void give_back(char* pointer) {
    std::lock_guard<std::mutex> held(lock);
    auto found = blocks.find(pointer);
    Block block = found->second;
    blocks.erase(found);
    block.others.erase(block.stream);
    if (block.others.empty()) return recycle(pointer, block);
    std::vector<Mark> marks;
    for (Queue* queue : block.others) marks.push_back({queue, queue->queued});
    leaving.push_back({std::move(marks), {pointer, block}});
  }
};

Memory& memory() {
  static Memory* one = new Memory;
  return *one;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device(KIND, c10::DeviceIndex(current_device));
    char* pointer = nbytes ? memory().take(nbytes) : nullptr;
    return {pointer, pointer, &give_back, device};
  }
  static void give_back(void* pointer) {
    if (pointer) memory().give_back(static_cast<char*>(pointer));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "laggard: no copy_data"); }
};

// Pinned and registered host memory: what the device may read and write late.
auto& pinned = *new std::map<const char*, size_t>;
bool refuses_pinning = false, refuses_registering = false;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> held(lock);
  const char* pointer = static_cast<const char*>(data);
  auto after = pinned.upper_bound(pointer);
  return after != pinned.begin() && pointer < std::prev(after)->first + std::prev(after)->second;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    TORCH_CHECK(!refuses_pinning, "laggard: pinned memory is refused");
    void* pointer = std::aligned_alloc(4096, (nbytes / 4096 + 1) * 4096);  // kept for ever: copies may be under way
    std::memset(pointer, 0xFF, nbytes);
    std::lock_guard<std::mutex> held(lock);
    pinned[static_cast<char*>(pointer)] = nbytes + 1;
    return {pointer, pointer, [](void*) {}, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

int register_host(size_t address, size_t nbytes) {  // returns what cudaHostRegister would
  if (!nbytes) return 1;
  if (refuses_registering) return 2;
  const char* start = reinterpret_cast<const char*>(address);
  std::lock_guard<std::mutex> held(lock);
  for (auto& [from, size] : pinned)
    if (from < start + nbytes && start < from + size) return 712;
  pinned[start] = nbytes;
  return 0;
}

int unregister_host(size_t address) {
  std::lock_guard<std::mutex> held(lock);
  return pinned.erase(reinterpret_cast<const char*>(address)) ? 0 : 713;
}

DeviceAllocator& device_allocator = *new DeviceAllocator;
PinnedAllocator& pinned_allocator = *new PinnedAllocator;

// -- what torch asks -------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {KIND, c10::DeviceIndex(std::exchange(current_device, device.index()))};
  }
  c10::Device getDevice() const override { return {KIND, c10::DeviceIndex(current_device)}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Stream getStream(c10::Device device) const override { return stream_on(index(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {KIND, c10::DeviceIndex(index(device))});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const int on = index(device);
    queue_of(c10::Stream(c10::Stream::DEFAULT, {KIND, c10::DeviceIndex(on)}));
    new_queue(on);
    return c10::Stream(c10::Stream::UNSAFE, {KIND, c10::DeviceIndex(on)}, int64_t(queues[on].size()) - 1);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int on = stream.device_index();
    const auto before = stream_on(on);
    current_stream[on] = stream.id();
    return before;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Mark*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Mark;
    *static_cast<Mark*>(*event) = end_of(queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const Mark mark = *static_cast<Mark*>(event);
    put(queue_of(stream), [mark] { until(mark); });
  }
  bool queryEvent(void* event) const override { return !event || ask(*static_cast<Mark*>(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits(*static_cast<Mark*>(event));
  }
  bool queryStream(const c10::Stream& stream) const override { return ask(end_of(queue_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override { host_waits(end_of(queue_of(stream))); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (auto* queue : std::vector<Queue*>(queues[device])) until(end_of(queue));
    host_waits({});
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Queue* queue = queue_of(stream);
    std::lock_guard<std::mutex> held(lock);
    auto found = memory().blocks.find(static_cast<char*>(data.get()));
    if (found != memory().blocks.end()) found->second.others.insert(queue);
  }
  static int index(c10::Device device) { return device.index() < 0 ? current_device : device.index(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Device getDeviceFromPtr(void*) const override { return {KIND, c10::DeviceIndex(current_device)}; }
};

}  // namespace
