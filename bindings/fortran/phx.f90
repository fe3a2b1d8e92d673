! phx.f90: checkpoints for programs in Fortran 2008; phx.h has what each call means, and so have its man pages. Link with -ltarn.
!
! Every function gives phx_ok, phx_degraded or a code of an error; phx_last_error() then says why. An array that is registered has
! the TARGET attribute where it is declared (or is a pointer's), is contiguous, and stays where it is until phx_destroy_obj or
! phx_finalize.
module phx
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  integer(c_int), parameter, public :: phx_ok = 0, phx_degraded = 1, phx_einvalid = 2, phx_ebusy = 3, phx_enotfound = 4, &
    phx_eexists = 5, phx_enospace = 6, phx_enomem = 7, phx_ecorrupt = 8, phx_eio = 9, phx_etimedout = 10, phx_elost = 11, &
    phx_eunsupported = 12, phx_eshape = 13, phx_einit = 14, phx_einternal = 15
  integer(c_int), parameter, public :: phx_committed = 0, phx_durable = 1, phx_replicated = 2, phx_flushed = 3
  integer(c_int32_t), parameter, public :: phx_same_node = 1, phx_no_staging = 2, phx_no_helper = 4, phx_audit = 8, &
    phx_no_replicas = 16, phx_mprotect = 32, phx_encrypt = 64
  integer(c_int32_t), parameter, public :: phx_own = 0, phx_replicated_obj = 1, phx_block = 2, phx_irregular = 3
  ! "as it is by default", where a number is asked for
  integer(c_int64_t), parameter, public :: phx_default = -1

  ! What phx_init is told; what is left out is as phx.h has it by default.
  type, public :: phx_options
    integer :: rank = 0, ranks = 1, replicas = 0, copies = 0, parity = 0
    character(:), allocatable :: run, tier, memory, meet, key, profile, external, transport
    integer(c_int64_t) :: staging = 0, timeout_ns = 0, replicate_every = 0, flush_every = 0, flush_rate = 0
    integer(c_int32_t), allocatable :: helpers(:)
    integer(c_int32_t) :: flags = 0
  end type

  type, bind(c), public :: phx_dimension
    integer(c_int64_t) :: all = 0, first = 0, extent = 0, ghost = 0
  end type

  ! What is said of an object. Its size is filled in here; phx_block_of makes those of a block.
  type, bind(c), public :: phx_properties
    integer(c_int32_t) :: size = 0
    integer(c_int8_t) :: transient = 0, precopy = 0, dma = 0, persistence = 0
    integer(c_int32_t) :: versions = 0, shape = phx_own, dimensions = 0
    integer(c_int64_t) :: row = 0
    type(phx_dimension) :: dimension(8)
    integer(c_int32_t) :: replicas = 0, reserved = 0
  end type

  type, bind(c), public :: phx_version
    integer(c_int64_t) :: generation = 0, number = 0
  end type

  type, bind(c), public :: phx_version_info
    type(phx_version) :: version
    integer(c_int64_t) :: bytes = 0
    integer(c_int32_t) :: ranks = 0, level = 0
  end type

  ! What phx_get_stats tells; the names are those of struct phx_stats.
  type, bind(c), public :: phx_stats
    integer(c_int32_t) :: size = 0, power_fail = 0
    integer(c_int64_t) :: commits = 0, commit_ns = 0, waited_ns = 0, bytes = 0, staged_bytes = 0, ahead_bytes = 0, &
      copied_twice_bytes = 0, destage_ns = 0, last_commit_ns = 0, last_staged_bytes = 0, last_destage_ns = 0, &
      persistent_rate = 0, memory_rate = 0, degraded = 0, damaged_chunks = 0, restored_bytes = 0, restore_ns = 0, &
      replicated = 0, bare = 0, flushed = 0, flushes_skipped = 0, flush_failed = 0, last_flush_ns = 0, pinned = 0, &
      rma_put_bytes = 0, tcp_put_bytes = 0, rma_fetched_bytes = 0, tcp_fetched_bytes = 0
  end type

  type, bind(c) :: options_of_c
    integer(c_int32_t) :: size = 0, rank = 0, ranks = 0, replicas = 0
    type(c_ptr) :: run = c_null_ptr, tier = c_null_ptr, memory = c_null_ptr, meet = c_null_ptr, key = c_null_ptr, &
      profile = c_null_ptr
    integer(c_int64_t) :: staging = 0, timeout_ns = 0
    type(c_ptr) :: helpers = c_null_ptr
    integer(c_int32_t) :: helper_count = 0, flags = 0, copies = 0, parity = 0
    integer(c_int64_t) :: replicate_every = 0
    type(c_ptr) :: external = c_null_ptr
    integer(c_int64_t) :: flush_every = 0, flush_rate = 0
    type(c_ptr) :: transport = c_null_ptr
  end type

  interface
    integer(c_int) function c_init(options) bind(c, name='phx_init')
      import
      type(options_of_c), intent(in) :: options
    end function
    integer(c_int) function c_create_obj(key, bytes, unit, properties, memory) bind(c, name='phx_create_obj')
      import
      character(kind=c_char), intent(in) :: key(*)
      integer(c_size_t), value :: bytes, unit
      type(phx_properties), intent(in) :: properties
      type(c_ptr), intent(out) :: memory
    end function
    integer(c_int) function c_register_obj(key, memory, bytes, unit, properties) bind(c, name='phx_register_obj')
      import
      character(kind=c_char), intent(in) :: key(*)
      type(c_ptr), value :: memory
      integer(c_size_t), value :: bytes, unit
      type(phx_properties), intent(in) :: properties
    end function
    integer(c_int) function c_destroy_obj(key) bind(c, name='phx_destroy_obj')
      import
      character(kind=c_char), intent(in) :: key(*)
    end function
    integer(c_int) function c_checkpoint_commit(version) bind(c, name='phx_checkpoint_commit')
      import
      type(c_ptr), value :: version
    end function
    integer(c_int) function c_restart(version, restored) bind(c, name='phx_restart')
      import
      type(c_ptr), value :: version, restored
    end function
    integer(c_int) function c_versions(versions, count) bind(c, name='phx_versions')
      import
      type(c_ptr), value :: versions
      integer(c_size_t), intent(inout) :: count
    end function
    integer(c_int) function c_wait(version, level, timeout_ns) bind(c, name='phx_wait')
      import
      type(phx_version), intent(in) :: version
      integer(c_int), value :: level
      integer(c_int64_t), value :: timeout_ns
    end function
    integer(c_int) function c_due(interval_ns, due) bind(c, name='phx_due')
      import
      integer(c_int64_t), value :: interval_ns
      integer(c_int), intent(out) :: due
    end function
    integer(c_int) function c_stats(stats) bind(c, name='phx_stats')
      import
      type(phx_stats), intent(inout) :: stats
    end function
    integer(c_int) function c_fail(code, why) bind(c, name='phx_fail')
      import
      integer(c_int), value :: code
      character(kind=c_char), intent(in) :: why(*)
    end function
    type(c_ptr) function c_last_error() bind(c, name='phx_last_error')
      import
    end function
    type(c_ptr) function c_code_text(code) bind(c, name='phx_code_text')
      import
      integer(c_int), value :: code
    end function
    integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
    end function
    ! Ends: what is staged is de-staged, memory of created objects is gone.
    integer(c_int) function phx_finalize() bind(c, name='phx_finalize')
      import
    end function
  end interface

  ! New memory for an array, all zero: code = phx_create_obj(key, pointer, extents [, properties]).
  interface phx_create_obj
    module procedure create_r4_1, create_r4_2, create_r4_3, create_r4_4
    module procedure create_r8_1, create_r8_2, create_r8_3, create_r8_4
    module procedure create_i4_1, create_i4_2, create_i4_3, create_i4_4
    module procedure create_i8_1, create_i8_2, create_i8_3, create_i8_4
    module procedure create_c4_1, create_c4_2, create_c4_3, create_c4_4
    module procedure create_c8_1, create_c8_2, create_c8_3, create_c8_4
  end interface

  ! A variable or array that the program has: code = phx_register_obj(key, variable [, properties]).
  interface phx_register_obj
    module procedure register_r4_0, register_r4_1, register_r4_2, register_r4_3, register_r4_4
    module procedure register_r8_0, register_r8_1, register_r8_2, register_r8_3, register_r8_4
    module procedure register_i4_0, register_i4_1, register_i4_2, register_i4_3, register_i4_4
    module procedure register_i8_0, register_i8_1, register_i8_2, register_i8_3, register_i8_4
    module procedure register_c4_0, register_c4_1, register_c4_2, register_c4_3, register_c4_4
    module procedure register_c8_0, register_c8_1, register_c8_2, register_c8_3, register_c8_4
  end interface

  public :: phx_init, phx_create_obj, phx_register_obj, phx_destroy_obj, phx_checkpoint_commit, phx_restart, phx_versions, &
    phx_wait, phx_due, phx_get_stats, phx_finalize, phx_last_error, phx_code_text, phx_block_of

contains

  ! Begins. All ranks call it.
  integer(c_int) function phx_init(options) result(code)
    type(phx_options), intent(in) :: options
    type(options_of_c) :: given
    character(:), allocatable, target :: run, tier, memory, meet, key, profile, external, transport
    integer(c_int32_t), allocatable, target :: helpers(:)
    given%size = int(c_sizeof(given), c_int32_t)
    given%rank = int(options%rank, c_int32_t)
    given%ranks = int(options%ranks, c_int32_t)
    given%replicas = int(options%replicas, c_int32_t)
    given%run = text(options%run, run)
    given%tier = text(options%tier, tier)
    given%memory = text(options%memory, memory)
    given%meet = text(options%meet, meet)
    given%key = text(options%key, key)
    given%profile = text(options%profile, profile)
    given%staging = options%staging
    given%timeout_ns = options%timeout_ns
    given%flags = options%flags
    given%copies = int(options%copies, c_int32_t)
    given%parity = int(options%parity, c_int32_t)
    given%replicate_every = options%replicate_every
    given%external = text(options%external, external)
    given%flush_every = options%flush_every
    given%flush_rate = options%flush_rate
    given%transport = text(options%transport, transport)
    if (allocated(options%helpers)) then
      helpers = options%helpers
      given%helper_count = size(helpers, kind=c_int32_t)
      if (size(helpers) > 0) given%helpers = c_loc(helpers)
    end if
    code = c_init(given)
  end function

  ! A text of C's; NULL for one that is not there.
  type(c_ptr) function text(given, kept)
    character(:), allocatable, intent(in) :: given
    character(:), allocatable, target, intent(out) :: kept
    text = c_null_ptr
    if (allocated(given)) then
      kept = given // c_null_char
      text = c_loc(kept)
    end if
  end function

  integer(c_int) function phx_destroy_obj(key) result(code)
    character(*), intent(in) :: key
    code = c_destroy_obj(key // c_null_char)
  end function

  ! Keeps the state of all objects. All ranks call it.
  integer(c_int) function phx_checkpoint_commit(version) result(code)
    type(phx_version), intent(out), optional, target :: version
    type(c_ptr) :: to
    to = c_null_ptr
    if (present(version)) to = c_loc(version)
    code = c_checkpoint_commit(to)
  end function

  ! Fills all objects from a version, or from the newest that all ranks can have; phx_enotfound when there is none.
  integer(c_int) function phx_restart(version, restored) result(code)
    type(phx_version), intent(in), optional, target :: version
    type(phx_version), intent(out), optional, target :: restored
    type(c_ptr) :: from, to
    from = c_null_ptr
    to = c_null_ptr
    if (present(version)) from = c_loc(version)
    if (present(restored)) to = c_loc(restored)
    code = c_restart(from, to)
  end function

  ! The versions that phx_restart could take, newest last.
  integer(c_int) function phx_versions(versions) result(code)
    type(phx_version_info), allocatable, target, intent(out) :: versions(:)
    integer(c_size_t) :: found, room
    found = 0
    code = c_versions(c_null_ptr, found)
    room = found
    allocate (versions(room))
    if (code == phx_ok .and. room > 0) code = c_versions(c_loc(versions), found)
  end function

  ! Waits until a version has a level, for all ranks; without a time as long as phx_init was told.
  integer(c_int) function phx_wait(version, level, timeout_ns) result(code)
    type(phx_version), intent(in) :: version
    integer(c_int), intent(in) :: level
    integer(c_int64_t), intent(in), optional :: timeout_ns
    integer(c_int64_t) :: within
    within = 0
    if (present(timeout_ns)) within = timeout_ns
    code = c_wait(version, level, within)
  end function

  ! Whether so many nanoseconds have gone by since the last commit, or phx_init; the same on all ranks, which all call it.
  integer(c_int) function phx_due(interval_ns, due) result(code)
    integer(c_int64_t), intent(in) :: interval_ns
    logical, intent(out) :: due
    integer(c_int) :: answer
    answer = 0
    code = c_due(interval_ns, answer)
    due = answer /= 0
  end function

  ! What was done: phx_stats of C, whose name is that of the type here.
  integer(c_int) function phx_get_stats(stats) result(code)
    type(phx_stats), intent(out) :: stats
    stats%size = int(c_sizeof(stats), c_int32_t)
    code = c_stats(stats)
  end function

  ! Why the last call did not give phx_ok, in words.
  function phx_last_error() result(why)
    character(:), allocatable :: why
    why = words(c_last_error())
  end function

  function phx_code_text(code) result(what)
    integer(c_int), intent(in) :: code
    character(:), allocatable :: what
    what = words(c_code_text(code))
  end function

  function words(from)
    type(c_ptr), intent(in) :: from
    character(:), allocatable :: words
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    call c_f_pointer(from, letters, [c_strlen(from)])
    allocate (character(size(letters)) :: words)
    do i = 1, size(letters)
      words(i:i) = letters(i)
    end do
  end function

  ! The properties of a rank's box of an array of all ranks: the extents of the whole array, which of its elements (counted from 1)
  ! is the box's first, the extents of the box, and how many at each end of a dimension are copies of a neighbour's; ghosts are part
  ! of the box.
  function phx_block_of(all, first, extents, ghosts) result(properties)
    integer, intent(in) :: all(:), first(:), extents(:)
    integer, intent(in), optional :: ghosts(:)
    type(phx_properties) :: properties
    integer :: i, n
    n = size(all)
    properties%shape = phx_block
    properties%dimensions = int(n, c_int32_t)
    if (n > size(properties%dimension) .or. size(first) /= n .or. size(extents) /= n) then
      properties%dimensions = -1 ! told by the call that gets this
      return
    end if
    do i = 1, n
      associate (to => properties%dimension(n + 1 - i)) ! the slowest first
        to%all = all(i)
        to%first = first(i) - 1
        to%extent = extents(i)
        if (present(ghosts)) to%ghost = ghosts(i)
      end associate
    end do
  end function

  integer(c_int) function created(key, extents, bits, properties, memory) result(code)
    character(*), intent(in) :: key
    integer, intent(in) :: extents(:), bits
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr), intent(out) :: memory
    integer(c_size_t) :: unit
    unit = bits / 8
    memory = c_null_ptr
    if (any(extents < 0)) then
      code = c_fail(phx_einvalid, 'an extent is negative' // c_null_char)
    else
      code = c_create_obj(key // c_null_char, product(int(extents, c_size_t)) * unit, unit, sized(properties), memory)
    end if
  end function

  integer(c_int) function registered(key, memory, elements, bits, whole, properties) result(code)
    character(*), intent(in) :: key
    type(c_ptr), intent(in) :: memory
    integer(c_size_t), intent(in) :: elements
    integer, intent(in) :: bits
    logical, intent(in) :: whole
    type(phx_properties), intent(in), optional :: properties
    integer(c_size_t) :: unit
    unit = bits / 8
    if (whole) then
      code = c_register_obj(key // c_null_char, memory, elements * unit, unit, sized(properties))
    else
      code = c_fail(phx_einvalid, 'the array is not contiguous: register the whole array' // c_null_char)
    end if
  end function

  function sized(given) result(properties)
    type(phx_properties), intent(in), optional :: given
    type(phx_properties) :: properties
    if (present(given)) properties = given
    properties%size = int(c_sizeof(properties), c_int32_t)
  end function

  integer(c_int) function create_r4_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real32), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r4_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real32), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r4_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real32), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r4_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real32), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_r4_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real32), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_r4_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real32), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r4_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real32), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r4_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real32), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r4_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real32), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

  integer(c_int) function create_r8_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real64), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r8_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real64), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r8_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real64), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_r8_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    real(real64), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_r8_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real64), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_r8_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real64), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r8_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real64), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r8_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real64), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_r8_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    real(real64), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

  integer(c_int) function create_i4_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i4_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i4_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i4_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_i4_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_i4_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i4_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i4_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i4_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int32), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

  integer(c_int) function create_i8_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i8_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i8_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_i8_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_i8_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_i8_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i8_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i8_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_i8_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    integer(int64), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

  integer(c_int) function create_c4_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c4_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c4_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c4_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_c4_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_c4_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c4_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c4_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c4_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real32), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

  integer(c_int) function create_c8_1(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), pointer, intent(out) :: array(:)
    integer, intent(in) :: extents(1)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c8_2(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), pointer, intent(out) :: array(:, :)
    integer, intent(in) :: extents(2)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c8_3(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), pointer, intent(out) :: array(:, :, :)
    integer, intent(in) :: extents(3)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function create_c8_4(key, array, extents, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), pointer, intent(out) :: array(:, :, :, :)
    integer, intent(in) :: extents(4)
    type(phx_properties), intent(in), optional :: properties
    type(c_ptr) :: memory
    nullify (array)
    code = created(key, extents, storage_size(array), properties, memory)
    if (code == phx_ok) call c_f_pointer(memory, array, extents)
  end function
  integer(c_int) function register_c8_0(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), target, intent(inout) :: array
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), 1_c_size_t, storage_size(array), .true., properties)
  end function
  integer(c_int) function register_c8_1(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), target, intent(inout) :: array(:)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c8_2(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), target, intent(inout) :: array(:, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c8_3(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), target, intent(inout) :: array(:, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function
  integer(c_int) function register_c8_4(key, array, properties) result(code)
    character(*), intent(in) :: key
    complex(real64), target, intent(inout) :: array(:, :, :, :)
    type(phx_properties), intent(in), optional :: properties
    code = registered(key, c_loc(array), size(array, kind=c_size_t), storage_size(array), is_contiguous(array), properties)
  end function

end module phx
