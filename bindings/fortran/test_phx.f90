! A program in Fortran with checkpoints in a folder: test_phx DIR STEPS goes on from the newest version to step STEPS, and has what it
! made last on an external store, DIR/store.
program test_phx
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
  use phx
  implicit none
  integer, parameter :: nx = 40, ny = 30, nz = 20
  type(phx_options) :: options
  type(phx_version) :: version, restored
  type(phx_version_info), allocatable :: versions(:)
  type(phx_stats) :: stats
  real(real64), pointer :: field(:, :, :), none(:)
  complex(real64), target :: wave(8, 9) = 0
  real(real32), allocatable, target :: rows(:)
  integer(int64), target :: ids(5, 4, 3, 2) = 0
  integer, target :: step = 0
  character(500) :: argument
  integer :: steps, code
  logical :: due

  call get_command_argument(1, argument)
  options%tier = trim(argument) // '/tier'
  options%memory = trim(argument) // '/memory'
  options%external = trim(argument) // '/store'
  options%flush_every = 100
  call get_command_argument(2, argument)
  read (argument, *) steps
  options%run = 'fortran'
  options%staging = phx_default
  options%flags = phx_mprotect
  options%profile = 'device=300MB/s'

  call same(phx_checkpoint_commit(), phx_einit, 'a commit before phx_init')
  if (phx_last_error() /= 'call phx_init first') call wrong('its error is ' // phx_last_error())
  options%transport = 'pigeon'
  call same(phx_init(options), phx_einvalid, 'a transport that there is not')
  options%transport = 'libfabric'
  call same(phx_init(options), phx_ok, 'phx_init')
  call same(phx_create_obj('field', field, [nx, ny, nz], phx_block_of([nx, 3 * ny, nz], [1, ny + 1, 1], [nx, ny, nz], [0, 2, 0])), &
    phx_ok, 'create a block')
  if (any(shape(field) /= [nx, ny, nz]) .or. any(field /= 0)) call wrong('a new array is not zero, or not of its shape')
  allocate (rows(1000))
  rows = 0
  call same(phx_register_obj('wave', wave), phx_ok, 'register complex')
  call same(phx_register_obj('rows', rows, phx_properties(shape=phx_irregular, row=40)), phx_ok, 'register rows')
  call same(phx_register_obj('ids', ids), phx_ok, 'register four dimensions')
  call same(phx_register_obj('step', step), phx_ok, 'register a scalar')
  call same(phx_register_obj('step', step), phx_eexists, 'register twice')
  call same(phx_register_obj('part', rows(::2)), phx_einvalid, 'register what is not contiguous')
  call same(phx_create_obj('none', none, [-1]), phx_einvalid, 'a negative extent')
  if (associated(none)) call wrong('what was not made is associated')
  call same(phx_create_obj('none', none, [10], phx_block_of([10], [2], [10])), phx_einvalid, 'a box beyond its array')
  call same(phx_create_obj('none', none, [10], phx_properties(replicas=1)), phx_eunsupported, 'a replica on no other node')
  call same(phx_create_obj('none', none, [10], phx_properties(persistence=int(phx_replicated, c_int8_t))), phx_einvalid, &
    'what is on other nodes, and there are none')
  call same(phx_create_obj('none', none, [10], phx_block_of([10, 2], [1], [10])), phx_einvalid, 'a box of other dimensions')

  code = phx_restart(restored=restored)
  if (code == phx_ok) then
    call check
    call same(phx_versions(versions), phx_ok, 'versions')
    if (versions(size(versions))%version%number /= restored%number) call wrong('another version is the newest')
    print '(a, i0, a, i0)', 'restored ', restored%number, ' step ', step
  else
    call same(code, phx_enotfound, 'a first start')
  end if
  do while (step < steps)
    step = step + 1
    field = values()
    wave = cmplx(step, -step, real64)
    rows = real(step)
    ids = step
    call same(phx_checkpoint_commit(version), phx_ok, 'commit')
  end do
  call same(phx_due(0_c_int64_t, due), phx_ok, 'due')
  call same(merge(1, 0, due), 1, 'whether it is due')
  call same(phx_wait(version, phx_durable), phx_ok, 'wait')
  call same(phx_wait(version, phx_flushed), phx_ok, 'wait for the external store')
  call same(phx_get_stats(stats), phx_ok, 'stats')
  if (stats%commits /= version%number .or. stats%bytes < stats%commits * nx * ny * nz * 8) call wrong('the stats')
  if (stats%flushed /= 1 .or. stats%last_flush_ns <= 0) call wrong('the stats of what was flushed')
  call same(phx_destroy_obj('ids'), phx_ok, 'destroy')
  call same(phx_create_obj('none', none, [10], phx_properties(persistence=int(phx_durable, c_int8_t))), phx_ok, 'what is durable')
  call same(phx_checkpoint_commit(), phx_ok, 'commit what is durable')
  call same(phx_get_stats(stats), phx_ok, 'stats')
  if (stats%last_staged_bytes /= 0) call wrong('what was staged')
  call same(phx_finalize(), phx_ok, 'phx_finalize')
  print '(a, i0)', 'done at step ', step

contains

  function values()
    real(real64) :: values(nx, ny, nz)
    integer :: i
    values = reshape([(real(i, real64) * step, i = 1, nx * ny * nz)], shape(values))
  end function

  subroutine check
    if (any(field /= values()) .or. any(wave /= cmplx(step, -step, real64)) .or. any(rows /= real(step)) .or. &
      any(ids /= step)) call wrong('what was restored')
  end subroutine

  subroutine same(is, wanted, what)
    integer(c_int), intent(in) :: is, wanted
    character(*), intent(in) :: what
    if (is /= wanted) call wrong(what // ': ' // phx_code_text(is) // ': ' // phx_last_error())
  end subroutine

  subroutine wrong(what)
    character(*), intent(in) :: what
    print '(2a)', 'wrong: ', what
    stop 1
  end subroutine
end program
